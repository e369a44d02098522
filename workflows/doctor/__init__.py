"""What a job needs of a cluster, looked at one by one."""
