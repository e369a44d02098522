"""Running jobs on a cluster, and the command line: templates, client, doctor, pods, commands.

`imagekiln.cluster` is the way in for users.
"""
