// Streams SMS to the service, from one JSON object per line on standard input: go run ./ingest < messages.ndjson
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"phoneproof.example/clients/connect"
	phoneproofv1 "phoneproof.example/clients/gen/phoneproof/v1"
)

const (
	maxWaiting   = 1000 // Bounds the memory, and the messages that are sent again after a lost connection.
	maxInRequest = 100
	longestLine  = 65536 // Far more than any SMS needs: a request has up to a hundred messages and at most 8 MiB.
)

// outbox holds the messages without a receipt, in order, and the position up to which the current connection has sent them.
type outbox struct {
	mutex   sync.Mutex
	changed *sync.Cond
	waiting []*phoneproofv1.InboundMessage
	sent    int
	ended   bool
	// The number of lines that could not be sent.
	unreadable int
}

func (o *outbox) add(message *phoneproofv1.InboundMessage) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	for len(o.waiting) >= maxWaiting {
		o.changed.Wait()
	}
	o.waiting = append(o.waiting, message)
	o.changed.Broadcast()
}

// next waits for messages to send; empty if all are sent and no more will be added, or if the connection is over.
func (o *outbox) next(connection context.Context) []*phoneproofv1.InboundMessage {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	for o.sent == len(o.waiting) && !o.ended && connection.Err() == nil {
		o.changed.Wait()
	}
	if connection.Err() != nil {
		return nil
	}
	until := o.sent + maxInRequest
	if until > len(o.waiting) {
		until = len(o.waiting)
	}
	messages := append([]*phoneproofv1.InboundMessage(nil), o.waiting[o.sent:until]...)
	o.sent = until
	return messages
}

// settle removes a message whose receipt has arrived: only now may your own queue delete it.
func (o *outbox) settle(id string) {
	o.change(func() {
		for index, message := range o.waiting {
			if message.GetMessageId() == id {
				o.waiting = append(o.waiting[:index], o.waiting[index+1:]...)
				if o.sent > 0 {
					o.sent--
				}
				return
			}
		}
	})
}

func (o *outbox) change(change func()) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	change()
	o.changed.Broadcast()
}

func (o *outbox) done() bool {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.ended && len(o.waiting) == 0
}

// read reads the messages. In production, use your queue, which must keep each message until its receipt has arrived. A line
// that cannot be sent is reported by its number and skipped.
func read(to *outbox) {
	unreadable := 0
	lines := bufio.NewReader(os.Stdin)
	for number := 1; ; number++ {
		line, end := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			message, err := messageOf(line)
			if err == nil {
				to.add(message)
			} else {
				// Without quoting the line, which contains a person's phone number.
				log.Printf("line %d was not sent: %v", number, err)
				unreadable++
			}
		}
		if end == nil {
			continue
		}
		if end != io.EOF {
			log.Println(end)
			unreadable++
		}
		break
	}
	to.change(func() { to.ended, to.unreadable = true, unreadable })
}

// messageOf leaves missing fields empty: the service answers INVALID.
func messageOf(line []byte) (*phoneproofv1.InboundMessage, error) {
	if len(line) > longestLine {
		return nil, errors.New("too long")
	}
	var sms struct {
		MessageID string `json:"message_id"`
		From      string `json:"from"`
		To        string `json:"to"`
		Text      string `json:"text"`
		Carrier   string `json:"carrier"`
	}
	if err := json.Unmarshal(line, &sms); err != nil {
		return nil, err
	}
	// The receipt for a longer id may contain only its beginning, and could not be matched to its message.
	if utf8.RuneCountInString(sms.MessageID) > 255 {
		return nil, errors.New("message_id is longer than 255 characters")
	}
	return &phoneproofv1.InboundMessage{
		MessageId: sms.MessageID, From: sms.From, To: sms.To, Text: sms.Text, Carrier: sms.Carrier,
	}, nil
}

// exchange uses one connection until every message has its receipt or the connection breaks.
func exchange(inbound phoneproofv1.InboundMessageServiceClient, caller context.Context, from *outbox) error {
	connection, over := context.WithCancel(caller)
	defer from.change(over)
	// A new connection sends every message without a receipt again: the service recognises by the id what it has accepted.
	from.change(func() { from.sent = 0 })
	stream, err := inbound.StreamInboundMessages(connection)
	if err != nil {
		return err
	}
	go func() {
		for messages := from.next(connection); len(messages) > 0; messages = from.next(connection) {
			// Send blocks until HTTP/2 flow control has room for it, which is the backpressure. Recv returns its errors.
			if stream.Send(&phoneproofv1.StreamInboundMessagesRequest{Messages: messages}) != nil {
				return
			}
		}
		stream.CloseSend()
	}()
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, receipt := range response.GetReceipts() {
			fmt.Println(receipt.GetMessageId(), strings.TrimPrefix(receipt.GetOutcome().String(), "INBOUND_MESSAGE_OUTCOME_"))
			from.settle(receipt.GetMessageId())
		}
	}
}

func main() {
	log.SetFlags(0)
	connection, caller, err := connect.Dial()
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	inbound := phoneproofv1.NewInboundMessageServiceClient(connection)

	messages := &outbox{}
	messages.changed = sync.NewCond(&messages.mutex)
	go read(messages)
	for pause := 100 * time.Millisecond; !messages.done(); pause *= 2 {
		err := exchange(inbound, caller, messages)
		switch status.Code(err) {
		case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented:
			log.Fatal(err)
		}
		if messages.done() {
			break
		}
		log.Println("connecting again:", err)
		if pause > time.Second {
			pause = time.Second
		}
		time.Sleep(pause/2 + time.Duration(rand.Int63n(int64(pause/2))))
	}
	if messages.unreadable > 0 {
		os.Exit(1)
	}
}
