#!/usr/bin/env python3
"""Reads traces of `dimmer sim run --trace`, `observe --trace` and `run --trace` with Perfetto's own
parser.

usage: ci/check-trace.py TRACE...

Checks that the parser knows every field, and what Perfetto asks of tracks and their events; says what each
trace holds, or what is wrong with it, and then ends with 1. Needs two packages, and no network once they are there:

    pip install perfetto==0.59.1 protobuf==7.36.2

Without them it says SKIPPED.
"""

import sys

try:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
        Trace, TracePacket, TrackEvent)
except ImportError as error:
    print(f"SKIPPED: {error}: pip install perfetto==0.59.1 protobuf==7.36.2")
    sys.exit(0)


def require(holds, what):
    if not holds:
        raise ValueError(what)


def parse(data):
    trace = Trace.FromString(data)
    # What the parser does not know it keeps apart, so without that the trace would be shorter.
    trace.DiscardUnknownFields()
    require(trace.SerializeToString() == data, "has fields that Perfetto does not know")
    return trace


def check_sequence(packets):
    flags = [packet.sequence_flags for packet in packets]
    cleared = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    require(flags[:1] == [cleared], "does not begin with the state cleared")
    require(set(flags[1:]) <= {TracePacket.SEQ_NEEDS_INCREMENTAL_STATE}, "odd flags")
    writers = {packet.trusted_packet_sequence_id for packet in packets}
    require(len(writers) == 1 and 0 not in writers, f"packets of {writers}")


def describe(tracks, track):
    require(track.uuid and track.uuid not in tracks, f"track {track.uuid} is there twice")
    is_known = not track.HasField("parent_uuid") or track.parent_uuid in tracks
    require(is_known, f"track {track.uuid} is below one that is not described")
    tracks[track.uuid] = {"counter": track.HasField("counter"), "open": False, "last": 0}


def happens(tracks, packet):
    event, at = packet.track_event, packet.timestamp
    require(packet.HasField("timestamp"), "an event without a moment")
    require(event.track_uuid in tracks, f"an event at {at} on a track that is not described")
    track = tracks[event.track_uuid]
    require(at >= track["last"], f"an event at {at} after one at {track['last']}")
    track["last"] = at
    is_counter = event.type == TrackEvent.TYPE_COUNTER
    require(is_counter == track["counter"], f"an event at {at} on a track of another kind")
    require(not is_counter or event.HasField("double_counter_value"), f"no number at {at}")
    if event.type in (TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END):
        begins = event.type == TrackEvent.TYPE_SLICE_BEGIN
        require(track["open"] != begins, f"slices overlap or end twice at {at}")
        track["open"] = begins
    return TrackEvent.Type.Name(event.type)


def check(path):
    with open(path, "rb") as file:
        packets = parse(file.read()).packet
    check_sequence(packets)
    tracks, events = {}, {}
    for packet in packets:
        if packet.HasField("track_descriptor"):
            describe(tracks, packet.track_descriptor)
        elif packet.HasField("track_event"):
            kind = happens(tracks, packet)
            events[kind] = events.get(kind, 0) + 1
    require(not any(track["open"] for track in tracks.values()), "a slice without an end")
    found = "".join(f", {count} {kind}" for kind, count in sorted(events.items()))
    print(f"{path}: {len(tracks)} tracks{found}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    failed = False
    for path in sys.argv[1:]:
        try:
            check(path)
        except Exception as error:  # whatever it is, it is told with the file's name
            print(f"{path}: {error}")
            failed = True
    sys.exit(failed)
