"""What Argo runs, and the command line."""
