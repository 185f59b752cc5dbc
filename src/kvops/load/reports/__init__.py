"""What a finished run says: a verdict, numbers and a picture, from the records on disk and nothing else."""
