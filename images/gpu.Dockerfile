# generate, and everything else: PyPI's torch, which brings its own CUDA. The node brings the driver. From the
# repository's root:
#   docker build --file images/gpu.Dockerfile --tag imagekiln-gpu:0.1.0 .
#   docker run --rm --gpus all --read-only --tmpfs /tmp --volume "$PWD:/work" --workdir /work imagekiln-gpu:0.1.0 run job.yaml
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS built
WORKDIR /source
COPY pyproject.toml ./
COPY requirements/lock.txt requirements/lock.txt
# First what we depend on: gigabytes that change less often than we do. Compiled here, since the root is read-only later.
RUN python -m venv /opt/imagekiln \
    && /opt/imagekiln/bin/pip install --no-cache-dir --disable-pip-version-check --constraint requirements/lock.txt uv \
    && /opt/imagekiln/bin/uv pip install --no-cache --compile-bytecode --python /opt/imagekiln/bin/python \
        --constraints requirements/lock.txt --requirements pyproject.toml --extra generate
COPY . .
RUN /opt/imagekiln/bin/uv pip install --no-cache --compile-bytecode --python /opt/imagekiln/bin/python \
        --no-deps --build-constraints requirements/lock.txt . \
    && /opt/imagekiln/bin/uv pip uninstall --python /opt/imagekiln/bin/python uv pip

FROM ${PYTHON}
COPY --from=built /opt/imagekiln /opt/imagekiln
# What of the driver NVIDIA's runtime puts in. Not which GPUs: an image that says "all" gets them in pods that asked for
# none, wherever that runtime is the default.
ENV PATH=/opt/imagekiln/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["imagekiln"]
CMD ["--help"]
