"""The paper, table by table: cells, what is missing of them, what they say beside the published numbers."""
