"""Cluster client: connections, submission, status, logs and schedules.

`connect` picks the API, `client` and `schedules` have the verbs, `status` and `logs` read the state
of a workflow. `templates/pod_retries.py` and a profile's `retries` decide how Argo retries pods.

Only this package talks to a cluster, through the Kubernetes client's connections. Imports
`templates` and its dependencies.
"""
