package server

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
	sampled = "00-" + traceID + "-" + spanID + "-01"
)

// collector receives spans by OTLP over gRPC.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	mutex    sync.Mutex
	requests []*collectorpb.ExportTraceServiceRequest
}

func (c *collector) Export(_ context.Context, request *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.requests = append(c.requests, request)
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// start serves, and returns the URL.
func (c *collector) start(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}

// exported returns the spans, and the attributes of the processes that they came from.
func (c *collector) exported() (spans []*tracepb.Span, processes []map[string]string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, request := range c.requests {
		for _, resource := range request.GetResourceSpans() {
			processes = append(processes, texts(resource.GetResource().GetAttributes()))
			for _, scope := range resource.GetScopeSpans() {
				spans = append(spans, scope.GetSpans()...)
			}
		}
	}
	return spans, processes
}

func texts(attributes []*commonpb.KeyValue) map[string]string {
	all := map[string]string{}
	for _, attribute := range attributes {
		all[attribute.GetKey()] = attribute.GetValue().GetStringValue()
	}
	return all
}

// tracedBy has a traceparent, as the manager's calls have.
func tracedBy(t *testing.T, traceparents ...string) context.Context {
	t.Helper()
	ctx := t.Context()
	for _, value := range traceparents {
		ctx = metadata.AppendToOutgoingContext(ctx, traceparent, value)
	}
	return ctx
}

// leaking is a provider that quotes the password and the user data.
func leaking() Provider {
	return provider(hostile{
		create: func(*driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) { return made() },
		delete: func(request *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
			return nil, status.Error(codes.ResourceExhausted, "no quota for "+string(request.Secret.Data["password"])+userData)
		},
		status: func(*driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
			return nil, notFound()
		},
		list: func() (*driver.ListMachinesResponse, error) { return &driver.ListMachinesResponse{}, nil },
	})
}

// The names and attributes are those of controllers/driver/protocol/src/server/service.rs.
func TestTracedCallsHaveTheSpansOfDriversInRust(t *testing.T) {
	collector := &collector{}
	traces, err := startTraces("p", collector.start(t))
	if err != nil {
		t.Fatal(err)
	}
	leaking := leaking()
	leaking.DeletesByID = true
	service := newService(leaking, newRedactor())
	service.tracer = traces.tracer
	drivers := pb.NewDriverClient(connection(t, service))
	must(drivers.CreateMachine(tracedBy(t, sampled), creation()))
	must(drivers.DeleteMachine(tracedBy(t, sampled), machine()))
	must(drivers.DeleteMachine(tracedBy(t), machine()))
	must(drivers.DeleteMachine(tracedBy(t, strings.TrimSuffix(sampled, "1")+"0"), machine()))
	must(drivers.DeleteMachine(tracedBy(t, "no trace"), machine()))
	must(drivers.GetMachineStatus(tracedBy(t, sampled), machine()))
	must(drivers.DeleteOrphan(tracedBy(t, sampled), &pb.DeleteOrphanRequest{Name: "m", ProviderId: "p:///1", Class: machine().Class}))
	traces.stop()

	spans, processes := collector.exported()
	machine := map[string]string{"nodewright.machine.name": "m", "nodewright.machine.namespace": "n", "nodewright.machine.uid": "uid"}
	expectSpans(t, spans, []expectedSpan{{name: "CreateMachine", attributes: machine}, {name: "DeleteMachine", attributes: machine, failure: "ResourceExhausted"}})
	for _, process := range processes {
		if process["service.name"] != "nodewright-driver-p" {
			t.Errorf("the process is %v", process)
		}
	}
	for _, request := range collector.requests {
		if text := request.String(); strings.Contains(text, password) || strings.Contains(text, "abcdef.0123456789abcdef") {
			t.Errorf("a secret is exported: %s", text)
		}
	}
}

type expectedSpan struct {
	name       string
	attributes map[string]string
	failure    string
}

func expectSpans(t *testing.T, spans []*tracepb.Span, expected []expectedSpan) {
	t.Helper()
	if len(spans) != len(expected) {
		t.Fatalf("the spans are %v", spans)
	}
	for at, span := range spans {
		attributes, code := maps.Clone(expected[at].attributes), tracepb.Status_STATUS_CODE_UNSET
		if expected[at].failure != "" {
			attributes["error.type"], code = expected[at].failure, tracepb.Status_STATUS_CODE_ERROR
		}
		isBelow := hex.EncodeToString(span.GetTraceId()) == traceID && hex.EncodeToString(span.GetParentSpanId()) == spanID
		isNamed := span.GetName() == expected[at].name && span.GetKind() == tracepb.Span_SPAN_KIND_SERVER
		hasEnded := span.GetStatus().GetCode() == code && span.GetStatus().GetMessage() == "" && len(span.GetEvents()) == 0
		if !isBelow || !isNamed || !hasEnded || !maps.Equal(texts(span.GetAttributes()), attributes) {
			t.Errorf("the span is %v, not %v", span, expected[at])
		}
	}
}

func TestTheCollectorIsThatOfTheFlagOrOfTheEnvironment(t *testing.T) {
	for _, row := range []struct{ environment, flag, endpoint string }{
		{"", "", ""},
		{"http://a:4317", "", "http://a:4317"},
		{"http://a:4317", "--otlp-endpoint=http://b:4317", "http://b:4317"},
	} {
		t.Setenv(otlpEndpoint, row.environment)
		line := []string{"driver", "--socket=/s"}
		if row.flag != "" {
			line = append(line, row.flag)
		}
		provider := leaking().withDefaults()
		parsed, err := parse(line, &provider, io.Discard)
		if err != nil || parsed.otlpEndpoint != row.endpoint {
			t.Errorf("%v leads to %q, %v", row, parsed.otlpEndpoint, err)
		}
	}
}

func TestWithoutAUsableCollectorNoSpanIsMade(t *testing.T) {
	for endpoint, isRefused := range map[string]bool{"": false, "https://user:" + password + "@c:4317": true, "collector:4317": true, "http://": true, "http://%zz": true} {
		traces, err := startTraces("p", endpoint)
		if (err != nil) != isRefused || err != nil && strings.Contains(err.Error(), password) {
			t.Errorf("%q leads to %v", endpoint, err)
		}
		service := newService(leaking(), newRedactor())
		service.tracer = traces.tracer
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(traceparent, sampled))
		if span := service.span(ctx, createMachine, machine()); span.IsRecording() {
			t.Errorf("%q leads to the span %v", endpoint, span)
		}
		traces.stop()
	}
}

// hanging is an exporter that knows no deadline, until it is released.
type hanging struct {
	sdktrace.SpanExporter
	exported sync.Once
	begun    chan struct{}
	released chan struct{}
}

func (h *hanging) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	h.exported.Do(func() { close(h.begun) })
	<-h.released
	return nil
}

func (h *hanging) Shutdown(context.Context) error { return nil }

// The process ends, too, while the collector still hangs.
func TestACollectorThatHangsDelaysNoCall(t *testing.T) {
	hanging := &hanging{begun: make(chan struct{}), released: make(chan struct{})}
	defer close(hanging.released)
	traces := tracesTo("p", hanging)
	service := newService(leaking(), newRedactor())
	service.tracer = traces.tracer
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(traceparent, sampled))
	call := func() { must(service.CreateMachine(ctx, creation())) }
	for range spanBatch {
		call()
	}
	<-hanging.begun
	// More than the queue takes.
	for range spanQueue + spanBatch {
		call()
	}
	traces.stop()
}

// failing is an exporter whose collector is away.
type failing struct{ sdktrace.SpanExporter }

func (failing) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	return errors.New("connection refused")
}

func (failing) Shutdown(context.Context) error { return nil }

func TestAnAbsentCollectorIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	logTo(&log, 0)
	traces := tracesTo("p", failing{})
	service := newService(leaking(), newRedactor())
	service.tracer = traces.tracer
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(traceparent, sampled))
	for range 2 * spanBatch {
		must(service.CreateMachine(ctx, creation()))
	}
	traces.stop()
	if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "is the collector reachable? connection refused") {
		t.Errorf("the log is %q", log.String())
	}
}

// What Main does, as the manager starts it.
func TestADriverExportsItsLastSpansWhenItEnds(t *testing.T) {
	collector := &collector{}
	ctx, stop := context.WithCancel(t.Context())
	path := filepath.Join(t.TempDir(), "driver.sock")
	ended, arguments := make(chan error), arguments{socket: path, otlpEndpoint: collector.start(t)}
	go func() { ended <- run(ctx, leaking().withDefaults(), newRedactor(), arguments) }()
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	must(pb.NewDriverClient(connection).CreateMachine(tracedBy(t, sampled), creation(), grpc.WaitForReady(true)))
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if spans, _ := collector.exported(); len(spans) != 1 {
		t.Errorf("the spans are %v", spans)
	}
}
