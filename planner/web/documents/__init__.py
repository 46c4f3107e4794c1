"""What the API answers: functions from typed arguments to JSON documents, which know nothing of HTTP.

Quantities are in SI units that the keys name. `catalogs` lists what can be chosen, `calibrations` states what is
measured, and `analysis`, `graph`, `memory` and `guess` compute answers without a job. `answers` states what
a page shows of an answer, and `question_form` which controls the form of a question has.
"""
