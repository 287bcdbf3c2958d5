"""Let the master fit, and score its predictions.

Takes about 3 s once the master serves.
"""

import csv
import json
import os
import urllib.request
from pathlib import Path

from sklearn.metrics import accuracy_score

MASTER = os.environ.get("MASTER", "http://localhost:8080")
# without the proxy of `http_proxy`: the master is on this network
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(path: str, body: object = None) -> dict:
    """Return the JSON that the master answers to a POST."""
    data = b"" if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if "CHIMERA_TOKEN" in os.environ:
        headers["Authorization"] = f"Bearer {os.environ['CHIMERA_TOKEN']}"
    with opener.open(urllib.request.Request(MASTER + path, data, headers, method="POST")) as answer:
        return json.load(answer)


def read(file: Path) -> tuple[list[str], list[list[float]]]:
    """Return the columns and the rows of a table of numbers."""
    with file.open(newline="") as lines:
        columns, *rows = csv.reader(lines)
    return columns, [[float(value) for value in row] for row in rows]


columns, rows = read(Path("test_data", "X_test.csv"))
truth = [row[0] for row in read(Path("test_data", "y_test.csv"))[1]]

post("/v1/chimera/parameter-server/fit")
answer = post("/v1/chimera/parameter-server/predict", {"X_pred_columns": columns, "X_pred_rows": rows})["y_pred_rows"]
print(f"accuracy {accuracy_score(truth, answer):.3f}")
