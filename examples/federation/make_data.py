"""Write rows and a policy for each node of compose.yaml: a third of breast-cancer into ``hospital-a/records.csv`` and so on."""

import tempfile
from pathlib import Path

from chimera.federation.hub.demo import NODES, POLICY, REQUESTER, policy_for, write_data

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        for name in NODES:
            Path(name).mkdir(exist_ok=True)
            Path(name, "records.csv").write_bytes(Path(folder, f"{name}.csv").read_bytes())
            Path(name, POLICY).write_text(policy_for(REQUESTER))
            print(f"{name}: records.csv, {POLICY}")
