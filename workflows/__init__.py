"""Jobs on a cluster, and the command line: templates, client, doctor, pods, commands.

Users start from `imagekiln.cluster`.
"""
