"""Checks of `imagekiln doctor`: the prerequisites of a job on a cluster, one at a time.

`docs/cluster.md` ("Check the cluster") lists every check. To add one:

1. Write a function in the `check_*.py` of its subject, with `@doctor_check("its-name")`. It reads
   objects from the `ClusterView`, never writes to the cluster, and returns `ok(...)`, `wrong(...)`
   or `unknown(...)`: a sentence that names the object, and the command or setting that helps; None
   if the job needs nothing of the kind. A read without the right to it raises Unreadable, which the
   decorator turns into `unknown`.
2. List it in `diagnosis.py`, in the order in which users fix things.
3. Test it against the stand-in cluster of `tests/kube.py`. Add its name to EVERY_CHECK in
   `tests/workflows/doctor/test_diagnosis.py` if every job with the profile `gpu` gets it.
4. Allow a kind that no other check reads in `cluster/overlays/whole-cluster/doctor.yaml` or, if it
   is namespaced, in the Role imagekiln-submitter of `cluster/base/access.yaml`. Name what needs the
   right in OPERATIONS of `tests/cluster/rbac.py`.
5. Add it to the table in `docs/cluster.md`, which `tests/package/test_docs.py` compares.

Imports `client` and below.
"""
