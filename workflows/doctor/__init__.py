"""`imagekiln doctor`: what a job needs of a cluster, checked one prerequisite at a time.

`docs/cluster.md` ("Check the cluster") lists every check. To add one:

1. Search that list: a check may exist that only needs another bound. Write a function in the
   module of its subject, one of the `check_*.py` modules. It takes the `ClusterView`, from which it
   reads objects, and what else it needs; the decorator `@doctor_check("its-name")` gives it its
   name. It returns `ok(...)`, `wrong(...)` or `unknown(...)` of `check.py`: a sentence that names
   the object, and as the remedy the exact command or setting. There is no verdict for a warning:
   what runs but may surprise is `ok`, with a second sentence that starts with "But". A check must
   not write to the cluster. A read that the user has no right to raises Unreadable, which the
   decorator turns into `unknown`.
   - Of several nodes, decide whether one bad node makes it wrong, as in `driver`, or one good node
     is enough, as in `gpu-nodes`.
   - A new field of nodes: read it in `node_fit.py`, and add it to the stand-in cluster of
     `tests/kube.py`.
2. Yield it in `diagnosis.py`, which makes all checks in the order in which users fix things, under
   the condition on which the job needs it: only with a claim, with a cache... What holds for CUDA
   only goes under `profile.gpu.device == "cuda"`.
3. Test it in `tests/workflows/doctor/` against the stand-in cluster of `tests/kube.py`. In
   `tests/workflows/doctor/test_diagnosis.py`, add its name to EVERY_CHECK if every job with the
   profile `gpu` gets it; otherwise, let `test_what_a_profile_names_is_checked` name what it checks.
4. If it reads a kind that no other check reads, allow that in the ClusterRole of
   `workflows/cluster/overlays/whole-cluster/doctor.yaml` or, for a namespaced kind, in the Role
   imagekiln-submitter of `workflows/cluster/base/access.yaml`.
5. Add it to the table in `docs/cluster.md`, which `tests/package/test_docs.py` compares with the
   code.

Imports `client` and below.
"""
