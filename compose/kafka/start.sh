#!/bin/bash
# Writes the settings, formats the data the first time, and becomes the broker.
#
# PENSTOCK_KAFKA_ADVERTISED  HOST:PORT under which clients outside the containers' network come
# PENSTOCK_KAFKA_INTERNAL    HOST:PORT for the containers beside this one, and for the broker itself
# PENSTOCK_KAFKA_SETTINGS    more settings, one NAME=VALUE a line; the last one of a name counts
set -euo pipefail
data=/var/lib/kafka/data
settings=/var/lib/kafka/server.properties

outside=${PENSTOCK_KAFKA_ADVERTISED:-127.0.0.1:9092}
inside=${PENSTOCK_KAFKA_INTERNAL:-$(hostname):19092}
{
  cat /opt/kafka/server.properties
  echo "advertised.listeners=PLAINTEXT://$outside,INTERNAL://$inside"
  printf '%s\n' "${PENSTOCK_KAFKA_SETTINGS:-}"
} > "$settings"

if [ ! -e "$data/meta.properties" ]; then
  id=$(python3 -c 'import base64, uuid; print("k" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22])')
  JAVA_TOOL_OPTIONS='' java @/opt/kafka/java.options \
    kafka.tools.StorageTool format -t "$id" -c "$settings"
fi
exec java @/opt/kafka/java.options kafka.Kafka "$settings"
