"""One end of the edge ``words``; what does not fit the other end is chosen by the environment."""

import os

import penstock as ps

APP = os.environ["TEST_APP"]

service = ps.Service("writer", app=APP)
(
    service.source("lines", topic=f"{APP}.lines", value=str, serde="string")
    .filter("known", bool)
    .to_edge("words", key=lambda word: word, partitions=4)
)
