"""The same prompts through several models, and a page that compares the first two.

python several_models.py job.yaml bundled:shapes path/to/another/model
"""

import sys

import imagekiln


def run_models(job_file: str, models: list[str]) -> list[str]:
    """Run the job once for each model; return the runs."""
    runs = []
    for number, model in enumerate(models):
        name = f"model-{number}"
        job = imagekiln.read_job(job_file, settings=[f"model.id={model}", f"name={name}"])
        result = imagekiln.run(job)
        print(model, result.summary.ok, "images in", result.uri)
        runs.append(result.uri)
    return runs


if __name__ == "__main__":
    job_file, *models = sys.argv[1:]
    first, second, *_ = run_models(job_file, models)
    print(imagekiln.diff(first, second, to="comparison").page)
