// SPDX-License-Identifier: Apache-2.0

// Worker answers what benchmarks/peers/worker.py asks: franz-go's ProcessFetchPartition on the bytes of one fetch, CRCs
// checked, records as views into the fetch or the decompressed batch. One P; as in Java's worker the heap never has to
// grow: there is no collection below 1 GiB.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var (
	options      = kgo.ProcessFetchPartitionOpts{Topic: "bench", IsolationLevel: kgo.ReadUncommitted()}
	decompressor = kgo.DefaultDecompressor() // with its pools of contexts, as a client keeps it
)

func fetch(data []byte) []*kgo.Record {
	response := kmsg.NewFetchResponseTopicPartition()
	response.HighWatermark = math.MaxInt64
	response.RecordBatches = data
	partition, _ := kgo.ProcessFetchPartition(options, &response, decompressor, nil)
	if partition.Err != nil {
		panic(partition.Err)
	}
	return partition.Records
}

func measure(data []byte, milliseconds int) string {
	records := len(fetch(data))
	begin := time.Now()
	calls := 0
	for {
		records = len(fetch(data))
		calls++
		if spent := time.Since(begin); spent >= time.Duration(milliseconds)*time.Millisecond {
			return fmt.Sprintf("%f\t%d", float64(spent.Nanoseconds())/float64(calls), records)
		}
	}
}

type column struct{ valid, lengths, data bytes.Buffer }

func (c *column) add(value []byte) {
	valid := byte(1)
	if value == nil {
		valid = 0
	}
	c.valid.WriteByte(valid)
	binary.Write(&c.lengths, binary.LittleEndian, int32(len(value)))
	c.data.Write(value)
}

func (c *column) bytes() []byte {
	return append(append(append([]byte{}, c.valid.Bytes()...), c.lengths.Bytes()...), c.data.Bytes()...)
}

func digest(data []byte) string {
	var offsets, timestamps, lists bytes.Buffer
	var keys, values, names, contents column
	records := fetch(data)
	for _, record := range records {
		binary.Write(&offsets, binary.LittleEndian, record.Offset)
		binary.Write(&timestamps, binary.LittleEndian, record.Timestamp.UnixMilli())
		keys.add(record.Key)
		values.add(record.Value)
		binary.Write(&lists, binary.LittleEndian, int32(len(record.Headers)))
		for _, header := range record.Headers {
			names.add([]byte(header.Key))
			contents.add(header.Value)
		}
	}
	hash := sha256.New()
	for _, part := range [][]byte{
		offsets.Bytes(), timestamps.Bytes(), keys.bytes(), values.bytes(), lists.Bytes(), names.bytes(), contents.bytes(),
	} {
		hash.Write(part)
	}
	return fmt.Sprintf("%x\t%d", hash.Sum(nil), len(records))
}

func main() {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(1 << 30)
	loaded := map[string][]byte{}
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		words := strings.Split(input.Text(), "\t")
		switch words[0] {
		case "load":
			data, err := os.ReadFile(words[2])
			if err != nil {
				panic(err)
			}
			loaded[words[1]] = data
			fmt.Println("ok")
		case "time":
			milliseconds, err := strconv.Atoi(words[2])
			if err != nil {
				panic(err)
			}
			fmt.Println(measure(loaded[words[1]], milliseconds))
		case "digest":
			fmt.Println(digest(loaded[words[1]]))
		default:
			panic("no command " + words[0])
		}
	}
}
