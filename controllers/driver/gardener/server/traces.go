package server

import (
	"context"
	"fmt"
	"net/url"
	"runtime/debug"
	"time"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"k8s.io/klog/v2"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

// The queue, the batches and the time limits are those of the manager and of drivers in Rust.
const (
	// The variable by which the manager gives its collector to the drivers that it starts.
	otlpEndpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	// The metadata of a call that the manager traces, by W3C's Trace Context.
	traceparent = "traceparent"
	scope       = "nodewright"
	// What does not fit is dropped.
	spanQueue = 4096
	spanBatch = 512
	// How long spans wait until they are exported.
	exportInterval = 2 * time.Second
	// The time limit of an export, with its retries.
	exportTimeout = 5 * time.Second
	// The time limit of the last export, when the process ends.
	flushTimeout = time.Second
	// Failed exports are logged this often.
	failureInterval = time.Minute
)

// traces exports spans of the calls that the manager traces, until they are stopped.
type traces struct {
	tracer trace.Tracer
	stop   func()
}

func noTraces() traces {
	return traces{tracer: noop.NewTracerProvider().Tracer(scope), stop: func() {}}
}

// startTraces exports to a collector at a URL. An empty one means no traces. Whether the collector is there does not matter.
func startTraces(provider, endpoint string) (traces, error) {
	if endpoint == "" {
		return noTraces(), nil
	}
	// The exporter would take its default in place of a URL that it cannot use.
	parsed, err := url.Parse(endpoint)
	if err != nil || parsed.Scheme != "http" || parsed.Host == "" {
		// The URL may have a password.
		return noTraces(), fmt.Errorf("the collector's URL must be like http://collector:4317")
	}
	exporter, err := otlptracegrpc.New(context.Background(), otlptracegrpc.WithEndpointURL(endpoint), otlptracegrpc.WithTimeout(exportTimeout),
		// A proxy of the environment is for the provider's cloud.
		otlptracegrpc.WithDialOption(grpc.WithNoProxy()))
	if err != nil {
		return noTraces(), err
	}
	return tracesTo(provider, exporter), nil
}

func tracesTo(provider string, exporter sdktrace.SpanExporter) traces {
	batches := sdktrace.NewBatchSpanProcessor(&loggingExporter{SpanExporter: exporter},
		sdktrace.WithMaxQueueSize(spanQueue), sdktrace.WithMaxExportBatchSize(spanBatch),
		sdktrace.WithBatchTimeout(exportInterval), sdktrace.WithExportTimeout(exportTimeout))
	made := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(batches), sdktrace.WithResource(process(provider)),
		// Only calls that belong to the trace of a Machine have spans.
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	return traces{tracer: made.Tracer(scope), stop: func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
		defer cancel()
		if err := made.Shutdown(ctx); err != nil {
			klog.Warningf("failed to export the last spans in time, some are lost: %v", err)
		}
	}}
}

// process is the name of this process in traces.
func process(provider string) *resource.Resource {
	attributes := []attribute.KeyValue{attribute.String("service.name", "nodewright-driver-"+provider)}
	if build, has := debug.ReadBuildInfo(); has && build.Main.Version != "" {
		attributes = append(attributes, attribute.String("service.version", build.Main.Version))
	}
	return resource.NewSchemaless(attributes...)
}

// loggingExporter logs failures now and then. The SDK would log each, and past the redactor. It makes one export at a time.
type loggingExporter struct {
	sdktrace.SpanExporter
	logged time.Time
}

func (e *loggingExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err != nil && (e.logged.IsZero() || time.Since(e.logged) >= failureInterval) {
		klog.Warningf("failed to export %d spans, is the collector reachable? %v", len(spans), err)
		e.logged = time.Now()
	}
	return nil
}

// span begins the span of a call about a Machine, below the manager's. A call that is not traced has none.
func (s *service) span(ctx context.Context, method string, machine *pb.MachineRequest) trace.Span {
	values := metadata.ValueFromIncomingContext(ctx, traceparent)
	if len(values) != 1 {
		return noop.Span{}
	}
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: values[0]})
	if !trace.SpanContextFromContext(ctx).IsRemote() {
		return noop.Span{}
	}
	_, span := s.tracer.Start(ctx, method, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("nodewright.machine.name", machine.GetName()),
		attribute.String("nodewright.machine.namespace", machine.GetNamespace()),
		attribute.String("nodewright.machine.uid", machine.GetToken()),
	))
	return span
}

// traced makes a call about a Machine within its span. The message of a failure may quote a secret: the span has its code alone. It
// is not ended by defer, as then the SDK would add the message of a panic.
func (s *service) traced(ctx context.Context, method string, machine *pb.MachineRequest, call func() outcome) outcome {
	span := s.span(ctx, method, machine)
	result := call()
	if result.failure != nil {
		span.SetStatus(otelcodes.Error, "")
		span.SetAttributes(attribute.String("error.type", codes.Code(result.failure.GetCode()).String()))
	}
	span.End()
	return result
}
