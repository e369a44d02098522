"""Code that runs in pods: job settings, plans, and the steps that generate a dataset."""
