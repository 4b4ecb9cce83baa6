// SPDX-License-Identifier: Apache-2.0
// Framing "confluent": a payload that begins with a zero byte and the id of its schema, an int32 (the wire format of
// schema-registry serializers). Ids that newer serializers put into headers are left alone.
#ifndef KCODEC_FRAMING_H
#define KCODEC_FRAMING_H

#include "columns.h"

enum { FRAME_BYTES = 5 };

// Splits key and value of a chunk that is being closed: the ids into their columns where these are wanted, and out of
// the payloads. What has no such prefix (null, shorter, another first byte, a control record) stays whole, its id null. Run
// after the loop over records rather than in it, so that it costs nothing where it is not requested. -1: no memory.
int framing_split(Chunk *chunk);

#endif
