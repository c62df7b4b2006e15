#!/bin/bash
# On a single drive a bucket is a folder: made before the server, it is there when it answers.
set -euo pipefail
mkdir -p "/var/lib/minio/data/${PENSTOCK_BUCKET:-penstock}"
exec minio server --quiet --address :9000 /var/lib/minio/data
