"""Write each prompt once for each weight of the LoRA `style` that lora-sweep.yaml names.

    python lora_sweep.py prompts.csv sweep.parquet

The seed is the prompt's own at every weight, so that two images differ by the LoRA alone.
"""

import sys

import duckdb

WEIGHTS = (0.0, 0.4, 0.8, 1.2)


def write_sweep(prompts: str, target: str) -> int:
    """Write the rows as Parquet; return how many they are."""
    rows = duckdb.sql(
        "select prompt, seed, weight, 'style:' || weight as loras, id || '-' || weight as id "
        f"from '{prompts}', (select unnest({list(WEIGHTS)}::double[]) as weight) order by id"
    )
    rows.write_parquet(target)
    return len(rows)


if __name__ == "__main__":
    print(write_sweep(*sys.argv[1:]), "rows")
