"""Code that pods run: the job's settings, its plan, and the steps that make a dataset of it."""
