# plan, aggregate, verify and the exit handler: no torch. From the repository's root:
#   docker build --file images/cpu.Dockerfile --tag imagekiln-cpu:0.1.0 .
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS built
WORKDIR /source
COPY pyproject.toml ./
COPY requirements/lock.txt requirements/lock.txt
# First what we depend on, which changes less often than we do. Compiled here, since the root is read-only later.
RUN python -m venv /opt/imagekiln \
    && /opt/imagekiln/bin/pip install --no-cache-dir --disable-pip-version-check --constraint requirements/lock.txt uv \
    && /opt/imagekiln/bin/uv pip install --no-cache --compile-bytecode --python /opt/imagekiln/bin/python \
        --constraints requirements/lock.txt --requirements pyproject.toml
COPY . .
RUN /opt/imagekiln/bin/uv pip install --no-cache --compile-bytecode --python /opt/imagekiln/bin/python \
        --no-deps --build-constraints requirements/lock.txt . \
    && /opt/imagekiln/bin/uv pip uninstall --python /opt/imagekiln/bin/python uv pip

FROM ${PYTHON}
COPY --from=built /opt/imagekiln /opt/imagekiln
ENV PATH=/opt/imagekiln/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A number, since Kubernetes cannot look up a name to see that it is not root. Only /tmp is written to.
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["imagekiln"]
CMD ["--help"]
