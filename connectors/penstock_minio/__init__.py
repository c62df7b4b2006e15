"""The snapshot stores of Penstock: an S3 bucket or a folder."""

from penstock_minio.bucket import MinioStore
from penstock_minio.copying import copy
from penstock_minio.folder import FileStore
from penstock_minio.opening import open_store
from penstock_minio.patience import Patience

__all__ = ["FileStore", "MinioStore", "Patience", "copy", "open_store"]
