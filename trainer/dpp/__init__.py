"""The data preprocessing pipeline (DPP): landing, schema check, read plan, cursor, reader, batches."""
