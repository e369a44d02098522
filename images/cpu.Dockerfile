# plan, aggregate, verify and the exit handler: no torch. From the repository's root:
#   docker build --file images/cpu.Dockerfile --tag imagekiln-cpu:0.1.0 .
ARG PYTHON=python:3.11-slim

# What we depend on changes less often than we do: a layer of its own, which nodes that have it do not pull again.
# Compiled here, since the root is read-only later.
FROM ${PYTHON} AS dependencies
WORKDIR /source
COPY pyproject.toml ./
COPY requirements/lock.txt requirements/
# Further extras, by their names: --build-arg EXTRAS="gcs azure" reads and writes gs:// and abfs://.
ARG EXTRAS=""
# hadolint ignore=SC2046  # an option for each name
RUN awk '/^[^ ]/ { is_uv = /^uv==/ } is_uv' requirements/lock.txt >uv.txt \
    && python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement uv.txt \
    && python -m venv --without-pip /opt/imagekiln \
    && uv pip install --no-cache --compile-bytecode --python /opt/imagekiln/bin/python \
        --require-hashes --constraints requirements/lock.txt --requirements pyproject.toml \
        $(for extra in ${EXTRAS}; do printf -- '--extra %s ' "${extra}"; done)

FROM dependencies AS ours
COPY . .
RUN uv build --wheel --no-cache --require-hashes --build-constraints requirements/lock.txt --out-dir /wheel \
    && uv pip install --no-cache --compile-bytecode --python /opt/imagekiln/bin/python --no-deps --no-index \
        --prefix /ours /wheel/*.whl

FROM ${PYTHON}
COPY --from=dependencies /opt/imagekiln /opt/imagekiln
COPY --from=ours /ours /opt/imagekiln
ENV PATH=/opt/imagekiln/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A number, since Kubernetes cannot look up a name to see that it is not root. Only /tmp is written to.
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["imagekiln"]
CMD ["--help"]
