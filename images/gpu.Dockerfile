# generate, and everything else: a torch that brings its own CUDA. The node brings the driver; docs/gpus.md says which.
# From the repository's root:
#   docker build --file images/gpu.Dockerfile --tag imagekiln-gpu:0.1.0 .
#   docker run --rm --gpus all --user "$(id -u):$(id -g)" --read-only --tmpfs /tmp:exec --volume "$PWD:/data" \
#     --workdir /data --env HF_HOME=/data/models --env IMAGEKILN_CODE_CACHE=/data/models/imagekiln \
#     imagekiln-gpu:0.1.0 run job.yaml
ARG PYTHON=python:3.11-slim

# Gigabytes that change less often than we do: a layer of its own, which nodes that have it do not pull again.
# Compiled here, since the root is read-only later.
FROM ${PYTHON} AS dependencies
WORKDIR /source
COPY pyproject.toml ./
COPY requirements/lock.txt requirements/own-torch.awk requirements/
# Empty for PyPI's torch, which is locked; cu130 and the like for PyTorch's own build for another CUDA, which brings CUDA
# libraries of other versions than those locked.
ARG TORCH_BACKEND=
# Further extras, by their names: --build-arg EXTRAS="gcs azure" reads and writes gs:// and abfs://.
ARG EXTRAS=""
# hadolint ignore=SC2046  # an option for each name
RUN awk '/^[^ ]/ { is_uv = /^uv==/ } is_uv' requirements/lock.txt >uv.txt \
    && python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement uv.txt \
    && python -m venv --without-pip /opt/imagekiln \
    && lock="--require-hashes --constraints requirements/lock.txt" \
    && if [ -n "${TORCH_BACKEND}" ]; then \
        awk -f requirements/own-torch.awk requirements/lock.txt >own-torch.txt; \
        lock="--constraints own-torch.txt"; \
        export UV_TORCH_BACKEND="${TORCH_BACKEND}"; \
    fi \
    && uv pip install --no-cache --compile-bytecode --python /opt/imagekiln/bin/python \
        ${lock} --requirements pyproject.toml \
        --extra generate --extra fp8 --extra gguf --extra c2pa \
        $(for extra in ${EXTRAS}; do printf -- '--extra %s ' "${extra}"; done)

FROM dependencies AS ours
COPY . .
RUN uv build --wheel --no-cache --require-hashes --build-constraints requirements/lock.txt --out-dir /wheel \
    && uv pip install --no-cache --compile-bytecode --python /opt/imagekiln/bin/python --no-deps --no-index \
        --prefix /ours /wheel/*.whl

FROM ${PYTHON}
# Triton builds its launchers with a C compiler and Python's headers, which this base has, when a model is first run.
# PyTorch builds code for the few numbers that stay on the CPU with a C++ compiler.
# hadolint ignore=DL3008  # Debian keeps but the newest of a release, so that a version named here would soon be gone
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY --from=dependencies /opt/imagekiln /opt/imagekiln
COPY --from=ours /ours /opt/imagekiln
# What of the driver NVIDIA's runtime puts in. Not which GPUs: an image that says "all" gets them in pods that asked for
# none, wherever that runtime is the default. Code is compiled by four processes: left alone, PyTorch would start as many
# as the node has cores, whatever the pod may use.
# Expandable segments leave memory less fragmented. Nothing here shares a GPU's memory between processes, as CUDA IPC does,
# which they would hinder; a vGPU without virtual memory refuses them.
# GKE mounts the driver at /usr/local/nvidia without NVIDIA's runtime; elsewhere those folders do not exist.
ENV PATH=/opt/imagekiln/bin:$PATH:/usr/local/nvidia/bin \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64 \
    HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTORCH_ALLOC_CONF=expandable_segments:True \
    TORCHINDUCTOR_CACHE_DIR=/tmp/compiled TORCHINDUCTOR_COMPILE_THREADS=4
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["imagekiln"]
CMD ["--help"]
