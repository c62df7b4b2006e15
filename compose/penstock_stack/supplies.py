"""What the stack needs before it can start, fetched or built ahead of time.

A test has a time limit that a first build would break, so ``make test`` calls this first; once the
cache is warm it takes no time and no network.
"""

import importlib.util
from concurrent.futures import ThreadPoolExecutor

from penstock_stack.jars import s3a_jars
from penstock_stack.kafka import class_archive
from penstock_stack.progress import Say
from penstock_stack.store import NoGo, minio_binary


def fetch(say: Say) -> None:
    """Fill the cache: Kafka's jars and what is made of them, MinIO where Go is, Spark's S3 client.

    Raises:
        StackError: something could not be fetched or built; says what to do.
    """
    with ThreadPoolExecutor(1) as compiler:
        minio = compiler.submit(minio_binary, say)  # compiles while the jars are fetched
        class_archive(say)
        if importlib.util.find_spec("pyspark") is not None:
            s3a_jars(say)
        try:
            minio.result()
        except NoGo as missing:
            say(f"No MinIO, snapshots will go to a folder: {missing}")
