// Loads a NATS JetStream cluster for `make bench-peers`: requests come as JSON lines on standard input, and answers are
// lines that begin with LOAD (tests/bench/peers/client.py). The streams BENCH0 to BENCH3 are the topic of four queues.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	queues         = 4
	connections    = 8
	syncSendersMax = 64 // more at once are published asynchronously, with the acknowledgements in order
	ackTimeout     = 5 * time.Second
	ackEvery       = 256
	readyTimeout   = 60 * time.Second
	settledSends   = 20
	drainTimeout   = 60 * time.Second
	headBytes      = 16
	noiseBytes     = 1 << 20
	bucketFactor   = 1.02
)

type request struct {
	Kind    string  `json:"kind"`
	Bytes   int     `json:"bytes"`
	AtOnce  int     `json:"at_once"`
	Batch   int     `json:"batch"`
	WarmUpS float64 `json:"warm_up_s"`
	Seconds float64 `json:"seconds"`
}

type result struct {
	Messages int64         `json:"messages"`
	Seconds  float64       `json:"seconds"`
	All      int64         `json:"all_messages"`
	Errors   int64         `json:"errors"`
	Error    string        `json:"error"`
	Buckets  map[int]int64 `json:"buckets"`
}

// meter counts what is acknowledged between begin and end, end to end also what is consumed after the end: without its
// late messages a consumer that falls behind would look fast. Times are kept in buckets that grow by 2 %.
type meter struct {
	mutex      sync.Mutex
	begin, end time.Time
	endToEnd   bool
	result     result
}

func newMeter(r request) *meter {
	begin := time.Now().Add(time.Duration(r.WarmUpS * float64(time.Second)))
	end := begin.Add(time.Duration(r.Seconds * float64(time.Second)))
	m := &meter{begin: begin, end: end, endToEnd: r.Kind == "end-to-end",
		result: result{Buckets: map[int]int64{}, Seconds: r.Seconds}}
	time.AfterFunc(time.Until(begin), func() { say("begin") })
	return m
}

func (m *meter) over() bool { return !time.Now().Before(m.end) }

func (m *meter) add(sent time.Time) {
	now := time.Now()
	bucket := int(math.Log(math.Max(float64(now.Sub(sent))/100, 1)) / math.Log(bucketFactor))
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.result.All++
	if !now.Before(m.begin) && (m.endToEnd || now.Before(m.end)) {
		m.result.Messages++
		m.result.Buckets[bucket]++
	}
}

func (m *meter) fail(err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.result.Errors++
	m.result.Error = err.Error()
}

var noise = func() []byte {
	made := make([]byte, noiseBytes)
	rand.New(rand.NewSource(1)).Read(made)
	return made
}()
var text = []byte(strings.Repeat("{\"order\": 4711, \"state\": \"paid\", \"warehouse\": \"north\"} ", 400))
var sequence atomic.Int64

// body returns a message whose head is unique and of whose rest one half is noise and one is text.
func body(size int) []byte {
	number := sequence.Add(1)
	made := make([]byte, size)
	binary.BigEndian.PutUint64(made, uint64(time.Now().UnixNano()))
	binary.BigEndian.PutUint64(made[8:], uint64(number))
	half := (size - headBytes) / 2
	offset := int(number*int64(half)) % (noiseBytes - half)
	copy(made[headBytes:], noise[offset:offset+half])
	copy(made[headBytes+half:], text)
	return made
}

func subject(number int64) string { return fmt.Sprintf("bench.%d", number%queues) }

func say(words ...any) { fmt.Println(append([]any{"LOAD"}, words...)...) }

type client struct{ streams []jetstream.JetStream }

func connect(servers string) (*client, error) {
	c := &client{}
	for n := 0; n < connections; n++ {
		connection, err := nats.Connect(servers, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
			nats.RetryOnFailedConnect(true), nats.PingInterval(time.Hour))
		if err != nil {
			return nil, err
		}
		js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(1<<20),
			jetstream.WithPublishAsyncTimeout(ackTimeout))
		if err != nil {
			return nil, err
		}
		c.streams = append(c.streams, js)
	}
	return c, nil
}

func name(queue int) string { return fmt.Sprintf("BENCH%d", queue) }

// prepare creates the streams with three replicas on disk, until that works.
func (c *client) prepare() (err error) {
	deadline := time.Now().Add(readyTimeout)
	for queue := 0; queue < queues; {
		ctx, cancel := context.WithTimeout(context.Background(), ackTimeout)
		_, err = c.streams[0].CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: name(queue),
			Subjects: []string{fmt.Sprintf("bench.%d", queue)}, Replicas: 3, Storage: jetstream.FileStorage})
		cancel()
		if err == nil {
			queue++
		} else if time.Now().After(deadline) {
			return err
		} else {
			time.Sleep(200 * time.Millisecond)
		}
	}
	return c.settle()
}

// settle purges the streams, and returns when all of them take messages again.
func (c *client) settle() error {
	deadline := time.Now().Add(readyTimeout)
	good := 0
	for number := int64(0); good < settledSends; number++ {
		ctx, cancel := context.WithTimeout(context.Background(), ackTimeout)
		_, err := c.streams[int(number)%connections].Publish(ctx, subject(number), body(100))
		cancel()
		if err == nil {
			good++
			continue
		}
		good = 0
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	for queue := 0; queue < queues; {
		ctx, cancel := context.WithTimeout(context.Background(), ackTimeout)
		stream, err := c.streams[0].Stream(ctx, name(queue))
		if err == nil {
			err = stream.Purge(ctx)
		}
		cancel()
		if err == nil {
			queue++
		} else if time.Now().After(deadline) {
			return err
		} else { // the nodes elect their leader for such calls after a pause
			time.Sleep(100 * time.Millisecond)
		}
	}
	return nil
}

// publish loads the cluster with r.AtOnce unacknowledged messages until the meter is over, and waits for the last one.
func (c *client) publish(r request, m *meter, sent *atomic.Int64) {
	var group sync.WaitGroup
	workers, each := r.AtOnce, 1
	if r.AtOnce > syncSendersMax {
		workers, each = connections, r.AtOnce/connections
	}
	for n := 0; n < workers; n++ {
		group.Add(1)
		go func(js jetstream.JetStream, number int64) {
			defer group.Done()
			if each == 1 {
				c.publishOneByOne(r, js, number, m, sent)
			} else {
				c.publishWindow(r, js, number, each, m, sent)
			}
		}(c.streams[n%connections], int64(n))
	}
	group.Wait()
}

func (c *client) publishOneByOne(r request, js jetstream.JetStream, number int64, m *meter, count *atomic.Int64) {
	for ; !m.over(); number++ {
		message, sent := body(r.Bytes), time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), ackTimeout)
		_, err := js.Publish(ctx, subject(number), message)
		cancel()
		if err != nil {
			m.fail(err)
			continue
		}
		count.Add(1)
		if r.Kind != "end-to-end" {
			m.add(sent)
		}
	}
}

type pending struct {
	future jetstream.PubAckFuture
	sent   time.Time
}

func (c *client) publishWindow(r request, js jetstream.JetStream, number int64, each int, m *meter, count *atomic.Int64) {
	waiting := make(chan pending, each)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for next := range waiting {
			select {
			case <-next.future.Ok():
				count.Add(1)
				if r.Kind != "end-to-end" {
					m.add(next.sent)
				}
			case err := <-next.future.Err():
				m.fail(err)
			}
		}
	}()
	for ; !m.over(); number++ {
		message, sent := body(r.Bytes), time.Now()
		future, err := js.PublishAsync(subject(number), message)
		if err != nil {
			m.fail(err)
			time.Sleep(time.Millisecond)
			continue
		}
		waiting <- pending{future, sent}
	}
	close(waiting)
	<-ended
}

// endToEnd publishes while one consumer a stream takes the messages, and acknowledges every 256th with all before it.
func (c *client) endToEnd(r request, m *meter) error {
	var sent, taken atomic.Int64
	for queue := 0; queue < queues; queue++ {
		ctx, cancel := context.WithTimeout(context.Background(), ackTimeout)
		defer cancel()
		consumer, err := c.streams[queue].CreateConsumer(ctx, name(queue), jetstream.ConsumerConfig{
			AckPolicy: jetstream.AckAllPolicy, DeliverPolicy: jetstream.DeliverNewPolicy, MaxAckPending: -1,
			InactiveThreshold: time.Minute})
		if err != nil {
			return err
		}
		var mine int64
		consuming, err := consumer.Consume(func(message jetstream.Msg) {
			m.add(time.Unix(0, int64(binary.BigEndian.Uint64(message.Data()))))
			if mine++; mine%ackEvery == 0 {
				_ = message.Ack()
			}
			taken.Add(1)
		}, jetstream.PullMaxMessages(4*ackEvery))
		if err != nil {
			return err
		}
		defer consuming.Stop()
	}
	c.publish(r, m, &sent)
	deadline := time.Now().Add(drainTimeout)
	for taken.Load() < sent.Load() {
		if time.Now().After(deadline) {
			return errors.New("not all messages were consumed")
		}
		time.Sleep(time.Millisecond)
	}
	// The rate is of all messages until the last one was taken: a consumer that falls behind makes it lower.
	m.result.Seconds = time.Since(m.begin).Seconds()
	return nil
}

func (c *client) run(r request) {
	var err error
	if r.Kind == "settle" {
		if err = c.settle(); err == nil {
			say("settled")
			return
		}
	}
	if err == nil && (r.Kind == "batches" || r.Kind == "transactions") {
		say("missing", map[string]string{"batches": "nats.go publishes no batches",
			"transactions": "JetStream has no half messages"}[r.Kind])
		return
	}
	if err == nil {
		m := newMeter(r)
		var count atomic.Int64
		if r.Kind == "end-to-end" {
			err = c.endToEnd(r, m)
		} else {
			c.publish(r, m, &count)
		}
		if err == nil {
			say("end")
			encoded, _ := json.Marshal(m.result)
			say("result", string(encoded))
			return
		}
	}
	say("failed", err)
}

func main() {
	c, err := connect(os.Args[1])
	if err == nil {
		err = c.prepare()
	}
	if err != nil {
		say("failed", err)
		os.Exit(1)
	}
	say("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			say("failed", err)
			continue
		}
		if r.Kind == "end-to-end" { // as many single messages on their way as others have in batches
			r.AtOnce *= r.Batch
		}
		c.run(r)
	}
}
