// SPDX-License-Identifier: Apache-2.0
// Framing "confluent": a payload begins with a zero byte and its schema id, an int32 (the wire format of Schema
// Registry serializers). Schema ids that newer serializers write to headers are not changed.
#ifndef KCODEC_FRAMING_H
#define KCODEC_FRAMING_H

#include "columns.h"

enum { FRAME_BYTES = 5 };

// Removes the prefixes from the keys and values of a chunk that is being finished, and writes the ids to their columns
// if these were requested. A payload without such a prefix (null, shorter, with another first byte, or of a control
// record) stays unchanged, and its id is null. This runs after the loop over records, so that it costs nothing if it is
// not requested. Returns -1 if there is no memory.
int framing_split(Chunk *chunk);

#endif
