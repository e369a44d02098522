"""Candidates, of which one remains: whole groups are planned, in SQL, or none of a group.

They are the images of a row, a fixed number of neighbors after the other.
"""

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import MAX_IMAGES_PER_ROW
from imagekiln.steps.storage.scratch import Database


def candidate_group_sql(candidates: int) -> str:
    """The number of the first candidate of each image's group, by the image's own `number`."""
    return f"number - number % {MAX_IMAGES_PER_ROW} % {candidates}"


def plan_whole_groups(database: Database, candidates: int) -> None:
    """Omit all candidates of which one exists. Raise BadInput where rows share some of theirs.

    `existing` and `planned_images` are the tables of a catalog.
    """
    group = candidate_group_sql(candidates)
    database.execute(
        f"""
        INSERT INTO existing
        SELECT number FROM planned_images WHERE {group} IN (SELECT {group} FROM existing)
        """
    )
    rows = database.fetch_table(
        f"""
        SELECT min(number) // {MAX_IMAGES_PER_ROW} AS row
        FROM planned_images GROUP BY {group} HAVING count(*) <> {candidates} ORDER BY row LIMIT 1
        """
    )
    if rows.num_rows:
        raise BadInput(
            f"prompts: row {rows['row'][0]} shares some of its {candidates} candidates with a row "
            f"of the same prompt, as their seeds are less than {candidates} apart. Change one seed."
        )
