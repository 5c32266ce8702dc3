"""Local stores and the sealed versions of a task's stores."""
