"""`imagekiln doctor`: what a job needs of a cluster, checked one prerequisite at a time.

To add a check:

1. Write a function in the module of its subject, one of the `check_*.py` modules. It takes the
   `ClusterView`, from which it reads objects, and what else it needs; the decorator
   `@doctor_check("its-name")` gives it its name. It returns `ok(...)`, `wrong(...)` or
   `unknown(...)` of `check.py`: a sentence that names the object, and as the remedy the exact
   command or setting. There is no verdict for a warning: what runs but may surprise is `ok`, with
   a second sentence that starts with "But". A check must not write to the cluster. A read that the
   user has no right to raises Unreadable, which the decorator turns into `unknown`.
2. Yield it in `diagnosis.py`, the one list of all checks, in the order in which users fix things.
3. Test it in `tests/workflows/doctor/` against the stand-in cluster of `tests/kube.py`. In
   `test_diagnosis.py`, add its name to EVERY_CHECK if every job with the profile `gpu` gets it;
   otherwise, let `test_what_a_profile_names_is_checked` name what it checks.
4. If it reads a kind that no other check reads, allow that in the ClusterRole of
   `workflows/cluster/overlays/whole-cluster/doctor.yaml` or, for a namespaced kind, in the Role
   imagekiln-submitter of `workflows/cluster/base/access.yaml`.
5. Name it in `docs/cluster.md` ("Check the cluster") and in `CHANGELOG.md`.

Imports `client` and below.
"""
