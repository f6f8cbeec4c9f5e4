"""One outside thing each: trace files, stores, servers, telemetry."""
