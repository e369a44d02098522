"""A batch between steps of your own: choose prompts, generate, train on the dataset.

    python pipeline.py | kubectl create -f -

Once, in the namespace: `kubectl apply -k` of Imagekiln's manifests, and the template of the job's
profile, which `imagekiln submit` registers and `imagekiln render` prints.
"""

import sys

from hera.workflows import DAG, Container, Parameter, Task, Workflow

from imagekiln import ClusterSettings, Job, ModelSettings
from imagekiln.cluster import batch_task

JOB = Job(
    name="postcards",
    prompts="s3://prompts/postcards/{date}/*.parquet",
    output="s3://datasets/postcards",
    model=ModelSettings(
        id="stabilityai/stable-diffusion-xl-base-1.0",
        revision="462165984030d82259a11f4367a4eed129e94a7b",
    ),
    cluster=ClusterSettings(namespace="imagekiln", profile="cached-claim", parallelism=8),
)
DATE = "{{workflow.parameters.date}}"

choose_prompts = Container(
    name="choose-prompts",
    image="registry.example.com/prompts:1",
    args=["--date", DATE, "--to", f"s3://prompts/postcards/{DATE}/"],
)
train = Container(
    name="train",
    inputs=[Parameter(name="run"), Parameter(name="ok")],
    image="registry.example.com/trainer:1",
    args=["--dataset", "{{inputs.parameters.run}}", "--images", "{{inputs.parameters.ok}}"],
)

choose = Task(name="choose", template=choose_prompts)
batch = batch_task(JOB, date=DATE, timezone="Europe/Berlin")
fit = Task(
    name="fit",
    template=train,
    arguments=[batch.get_parameter("run"), batch.get_parameter("ok")],
)
choose >> batch
batch >> fit

pipeline = Workflow(
    generate_name="postcards-",
    namespace=JOB.cluster.namespace,
    entrypoint="main",
    arguments={"date": "2026-11-21"},
    templates=[DAG(name="main", tasks=[choose, batch, fit]), choose_prompts, train],
)

if __name__ == "__main__":
    sys.stdout.write(pipeline.to_yaml(width=2**31))  # a wrapped text may not read back the same
