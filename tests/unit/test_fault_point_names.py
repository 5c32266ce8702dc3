"""The list of fault points names what the code has, no more and no less."""

import ast
from pathlib import Path

import statekeep
from statekeep import fault_points


def test_every_fault_point_of_the_code_is_listed_and_every_listed_one_is_there() -> None:
    lists = [value for name, value in vars(fault_points).items() if name.endswith("FAULT_POINTS")]
    listed = {point for points in lists for point in points}
    called: set[str] = set()
    for path in Path(statekeep.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id == "fault_point" and isinstance(node.args[0], ast.Constant):
                called.add(str(node.args[0].value))
    assert called == listed
