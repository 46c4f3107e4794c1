"""What the API answers: functions from typed arguments to JSON documents, which know nothing of HTTP.

Quantities are in SI units that the keys name. `catalogs` lists what can be chosen, `calibrations` states what is
measured, and `analysis`, `graph`, `memory` and `guess` compute results without a job. `deployment_text` checks a
deployment.yaml. `answers`, `comparisons` and `inference_result` state what a page shows of finished jobs, and
`question_form` which controls the form of a question has.
"""
