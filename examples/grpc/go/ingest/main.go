// Streams SMS in, a JSON message a line on standard input: go run ./ingest < messages.ndjson
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
	maxWaiting   = 1000 // Bounds the memory, and what is sent again after a cut.
	maxInRequest = 100
	longestLine  = 65536 // Far beyond any SMS: a hundred of them are one request, which may have 8 MiB.
)

// outbox holds the messages without a receipt, in their order, and how far into them the present connection has sent.
type outbox struct {
	mutex   sync.Mutex
	changed *sync.Cond
	waiting []*phoneproofv1.InboundMessage
	sent    int
	ended   bool
	// How many lines could not be sent.
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

// next waits for what to send; nothing where no more will come, or the connection is over.
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

// settle forgets a message: its receipt has come.
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

// read is in production your queue, which keeps a message until its receipt has come. A line that cannot be sent is told
// by its number, and those after it are read on.
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
				// Without the line itself, which holds a person's number.
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

// messageOf leaves what is missing empty: the service answers INVALID.
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
	// The receipt of a longer one has its beginning alone.
	if utf8.RuneCountInString(sms.MessageID) > 255 {
		return nil, errors.New("a message_id of more than 255 characters")
	}
	return &phoneproofv1.InboundMessage{
		MessageId: sms.MessageID, From: sms.From, To: sms.To, Text: sms.Text, Carrier: sms.Carrier,
	}, nil
}

// exchange is one connection, until everything has its receipt or it breaks.
func exchange(inbound phoneproofv1.InboundMessageServiceClient, caller context.Context, from *outbox) error {
	connection, over := context.WithCancel(caller)
	defer from.change(over)
	// A new connection sends everything without a receipt again: the service knows by the id what it has taken.
	from.change(func() { from.sent = 0 })
	stream, err := inbound.StreamInboundMessages(connection)
	if err != nil {
		return err
	}
	go func() {
		for messages := from.next(connection); len(messages) > 0; messages = from.next(connection) {
			// Send returns when HTTP/2 has room for it: that is the flow control. What broke, Recv tells.
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
