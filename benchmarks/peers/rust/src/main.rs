// SPDX-License-Identifier: Apache-2.0
//! Answers what benchmarks/peers/worker.py asks: kafka-protocol's RecordBatchDecoder on the bytes of one fetch, CRCs
//! checked (it always does), fields as reference-counted views.

mod encoding;

use bytes::Bytes;
use encoding::Encoding;
use kafka_protocol::records::{RecordBatchDecoder, RecordSet};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::BufRead;
use std::time::Instant;

fn fetch(data: &Bytes) -> Vec<RecordSet> {
    let mut input = data.clone();
    RecordBatchDecoder::decode_all(&mut input).expect("these bytes decode")
}

fn count(sets: &[RecordSet]) -> usize {
    sets.iter().map(|set| set.records.len()).sum()
}

fn measure(data: &Bytes, milliseconds: u128) -> String {
    let mut records = count(&fetch(data));
    let begin = Instant::now();
    let mut calls = 0u32;
    loop {
        records = records.max(count(&fetch(data)));
        calls += 1;
        let spent = begin.elapsed();
        if spent.as_millis() >= milliseconds {
            return format!("{}\t{}", spent.as_nanos() as f64 / f64::from(calls), records);
        }
    }
}

#[derive(Default)]
struct Column {
    valid: Vec<u8>,
    lengths: Vec<u8>,
    data: Vec<u8>,
}

impl Column {
    fn add(&mut self, value: Option<&[u8]>) {
        self.valid.push(u8::from(value.is_some()));
        let value = value.unwrap_or_default();
        self.lengths.extend((value.len() as i32).to_le_bytes());
        self.data.extend(value);
    }

    fn into(self, hash: &mut Sha256) {
        hash.update(self.valid);
        hash.update(self.lengths);
        hash.update(self.data);
    }
}

fn digest(data: &Bytes) -> String {
    let (mut offsets, mut timestamps, mut lists) = (Vec::new(), Vec::new(), Vec::new());
    let (mut keys, mut values) = (Column::default(), Column::default());
    let (mut names, mut contents) = (Column::default(), Column::default());
    let sets = fetch(data);
    for record in sets.iter().flat_map(|set| &set.records) {
        offsets.extend(record.offset.to_le_bytes());
        timestamps.extend(record.timestamp.to_le_bytes());
        keys.add(record.key.as_deref());
        values.add(record.value.as_deref());
        lists.extend((record.headers.len() as i32).to_le_bytes());
        for (name, content) in &record.headers {
            names.add(Some(name.as_bytes()));
            contents.add(content.as_deref());
        }
    }
    let mut hash = Sha256::new();
    hash.update(offsets);
    hash.update(timestamps);
    keys.into(&mut hash);
    values.into(&mut hash);
    hash.update(lists);
    names.into(&mut hash);
    contents.into(&mut hash);
    let hexadecimal: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}\t{}", hexadecimal, count(&sets))
}

fn main() {
    let mut loaded: HashMap<String, Bytes> = HashMap::new();
    let mut encodings: HashMap<String, Encoding> = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("standard input is text");
        let words: Vec<&str> = line.split('\t').collect();
        match words[0] {
            "load" => {
                loaded.insert(words[1].into(), std::fs::read(words[2]).expect("the file is there").into());
                println!("ok");
            }
            "time" => println!("{}", measure(&loaded[words[1]], words[2].parse().expect("milliseconds"))),
            "digest" => println!("{}", digest(&loaded[words[1]])),
            "encode" | "made" => {
                let data = &loaded[words[1]];
                let encoding = encodings.entry(words[1].into()).or_insert_with(|| Encoding::new(data));
                if words[0] == "encode" {
                    println!("{}", encoding.measure(words[2], words[3].parse().expect("milliseconds")));
                } else {
                    std::fs::write(words[3], encoding.made(words[2])).expect("the file can be written");
                    println!("ok");
                }
            }
            other => panic!("no command {other}"),
        }
    }
}
