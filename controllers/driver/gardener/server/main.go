package server

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/klog/v2"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

const (
	// The longest call and consistency window that the manager takes.
	longest = 10 * time.Minute
	// How many calls may be under way on one connection. Those of Machines that hang must leave room for the others.
	mostCalls = 4096
	// How long calls may go on when the process is asked to stop.
	grace = 5 * time.Second
)

// arguments are those of a driver's process, as the manager's --driver gives them, and some for people.
type arguments struct {
	socket        string
	stopWithStdin bool
	verbosity     int
	otlpEndpoint  string
}

// Main serves a provider until SIGTERM, SIGINT, or the end of the standard input if the arguments say so. It returns the exit code.
func Main(provider Provider) int {
	provider = provider.withDefaults()
	arguments, err := parse(os.Args, &provider, os.Stderr)
	if err != nil {
		return 2
	}
	redactor := newRedactor()
	logTo(writer{redactor: redactor, inner: os.Stderr}, arguments.verbosity)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if arguments.stopWithStdin {
		ctx = untilEnd(ctx, os.Stdin)
	}
	if err := run(ctx, provider, redactor, arguments); err != nil {
		klog.Error(err)
		return 1
	}
	return 0
}

// run serves until the context ends.
func run(ctx context.Context, provider Provider, redactor *redactor, arguments arguments) error {
	socket, err := bind(arguments.socket)
	if err != nil {
		return err
	}
	traces, err := startTraces(provider.Name, arguments.otlpEndpoint)
	if err != nil {
		// A collector that this program cannot use is no reason to make no machines.
		klog.Warningf("without traces: %v", err)
	}
	defer traces.stop()
	service := newService(provider, redactor)
	service.tracer = traces.tracer
	klog.Infof("serving %s on %s", provider.Name, arguments.socket)
	return serve(ctx, service, socket)
}

// Serve serves a provider on a socket until the context ends, as Main does, and leaves logs as they are. It is for tests of providers.
func Serve(ctx context.Context, provider Provider, path string) error {
	socket, err := bind(path)
	if err != nil {
		return err
	}
	return serve(ctx, newService(provider, newRedactor()), socket)
}

func parse(line []string, provider *Provider, output io.Writer) (arguments, error) {
	var parsed arguments
	flags := flag.NewFlagSet(line[0], flag.ContinueOnError)
	flags.SetOutput(output)
	flags.StringVar(&parsed.socket, "socket", "", "path of the Unix socket to serve")
	flags.BoolVar(&parsed.stopWithStdin, "stop-with-stdin", false, "stop when the standard input ends, as it does with the process that started this one")
	flags.IntVar(&parsed.verbosity, "v", 0, "how much the provider logs, as for klog")
	flags.StringVar(&parsed.otlpEndpoint, "otlp-endpoint", "", "URL of a collector of OpenTelemetry for spans of the calls that the manager traces, such as http://collector:4317 (default: "+otlpEndpoint+" of the environment)")
	flags.DurationVar(&provider.LongestCall, "longest-call", provider.LongestCall, "how long the manager waits for a call, 1s to 10m")
	flags.DurationVar(&provider.Consistency, "consistency", provider.Consistency, "how long the provider may hide a new VM, up to 10m")
	if err := flags.Parse(line[1:]); err != nil {
		return parsed, err
	}
	if parsed.otlpEndpoint == "" {
		parsed.otlpEndpoint = os.Getenv(otlpEndpoint)
	}
	if parsed.socket == "" || flags.NArg() > 0 {
		err := fmt.Errorf("needs --socket=FILE, and takes no arguments besides flags")
		fmt.Fprintln(output, "error:", err)
		return parsed, err
	}
	// With others the manager would not take the driver.
	if provider.LongestCall < time.Second || provider.LongestCall > longest || provider.Consistency < 0 || provider.Consistency > longest {
		err := fmt.Errorf("--longest-call must be 1s to 10m, and --consistency 0s to 10m")
		fmt.Fprintln(output, "error:", err)
		return parsed, err
	}
	return parsed, nil
}

// logTo writes all logs of Go's common packages to one writer. klog by itself would write errors past it.
func logTo(output io.Writer, verbosity int) {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	// Both flags exist and take these values.
	_ = flags.Set("v", strconv.Itoa(verbosity))
	_ = flags.Set("stderrthreshold", "FATAL")
	withoutTime := func(groups []string, attribute slog.Attr) slog.Attr {
		if len(groups) == 0 && attribute.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return attribute
	}
	// The lowest level: klog's verbosity decides.
	logger := slog.New(slog.NewTextHandler(output, &slog.HandlerOptions{Level: slog.Level(-128), ReplaceAttr: withoutTime}))
	slog.SetDefault(logger)
	klog.SetSlogLogger(logger)
	log.SetFlags(0)
	log.SetOutput(output)
}

// untilEnd ends a context also when there is no more to read.
func untilEnd(ctx context.Context, input io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		// An error is an end, too.
		_, _ = io.Copy(io.Discard, input)
	}()
	return ctx
}

// serve serves until the context ends. Calls may then go on for some seconds.
func serve(ctx context.Context, service *service, socket *socket) error {
	server := grpc.NewServer(grpc.MaxConcurrentStreams(mostCalls), grpc.MaxRecvMsgSize(messageLimit), grpc.MaxSendMsgSize(messageLimit))
	pb.RegisterDriverServer(server, service)
	reporter := health.NewServer()
	reporter.SetServingStatus(pb.Driver_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, reporter)
	stopped := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		defer close(stopped)
		overdue := time.AfterFunc(grace, server.Stop)
		defer overdue.Stop()
		server.GracefulStop()
	})()
	if err := server.Serve(socket); err != nil {
		return fmt.Errorf("failed to serve the socket %s: %w", socket.path, err)
	}
	<-stopped
	return nil
}
