// SPDX-License-Identifier: Apache-2.0
//! Records to batches by kafka-protocol's RecordBatchEncoder, each codec at its default level, into a buffer that is used
//! again. The records are its own before the clock starts.

use bytes::{Bytes, BytesMut};
use kafka_protocol::records::{Compression, Record, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions};
use std::time::Instant;

pub struct Encoding {
    batches: Vec<Vec<Record>>,
    buffer: BytesMut,
}

fn options(codec: &str) -> RecordEncodeOptions {
    let compression = match codec {
        "none" => Compression::None,
        "gzip" => Compression::Gzip,
        "snappy" => Compression::Snappy,
        "lz4" => Compression::Lz4,
        "zstd" => Compression::Zstd,
        other => panic!("no codec {other}"),
    };
    RecordEncodeOptions { version: 2, compression }
}

impl Encoding {
    pub fn new(data: &Bytes) -> Self {
        let sets = RecordBatchDecoder::decode_all(&mut data.clone()).expect("these bytes decode");
        let mut batches: Vec<Vec<Record>> = sets.into_iter().map(|set| set.records).collect();
        for (at, record) in batches.iter_mut().flat_map(|batch| batch.iter_mut().enumerate()) {
            record.sequence = at as i32; // the encoder ends a batch where sequences do not rise with offsets
            record.offset = at as i64;
        }
        Encoding { batches, buffer: BytesMut::with_capacity(2 * data.len() + 4096) }
    }

    fn run(&mut self, options: &RecordEncodeOptions) {
        self.buffer.clear();
        for batch in &self.batches {
            RecordBatchEncoder::encode(&mut self.buffer, batch, options).expect("these records encode");
        }
    }

    pub fn measure(&mut self, codec: &str, milliseconds: u128) -> String {
        let options = options(codec);
        let records: usize = self.batches.iter().map(Vec::len).sum();
        let begin = Instant::now();
        let mut calls = 0u32;
        loop {
            self.run(&options);
            calls += 1;
            let spent = begin.elapsed();
            if spent.as_millis() >= milliseconds {
                return format!("{}\t{}", spent.as_nanos() as f64 / f64::from(calls), records);
            }
        }
    }

    pub fn made(&mut self, codec: &str) -> &[u8] {
        self.run(&options(codec));
        &self.buffer
    }
}
