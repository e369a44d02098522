"""A cluster from Python: connections, submission, status, logs and schedules.

`connect` picks the API, `client` and `schedules` hold the verbs, `status` and `logs` read what
became of a workflow. Retries of pods are decided by `templates/pod_retries.py` and a profile's
`retries`.

The only package that talks to a cluster, through the Kubernetes client's connections. Imports
`templates` and below.
"""
