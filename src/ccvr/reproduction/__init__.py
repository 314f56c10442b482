"""The paper, table by table: its cells, the jobs that train them, and our numbers beside the published ones."""
