"""Sessions: requests that wait for each other, their texts, and how they are written, drawn and recorded."""
