#!/bin/bash
# Runs when the image is built: starts the broker once and stops it, so that the JVM writes an
# archive of Kafka's classes, loaded and checked, which halves every later start.
set -euo pipefail
JAVA_TOOL_OPTIONS=-XX:ArchiveClassesAtExit=/opt/kafka/kafka.jsa \
  /bin/bash /opt/kafka/start.sh > /tmp/train.log 2>&1 &
broker=$!
for _ in $(seq 240); do
  /bin/bash /opt/kafka/healthy.sh 2> /dev/null && break
  sleep 0.5
done
sleep 1
kill -TERM "$broker"
wait "$broker" || true
rm -rf /var/lib/kafka/data /var/lib/kafka/server.properties /tmp/train.log
ls -l /opt/kafka/kafka.jsa
