//! Spans of long lives: recorded when they end, with deterministic ids.
//!
//! The spans of `tracing` live in memory from start to end, but the creation of a machine may outlive a process. So such a span
//! is written once, when it is over, from the contents of objects: its start, its end, and an id derived from names and UIDs. A
//! process that repeats the write of a dead one writes the same span, and the collector sees one.
//!
//! # Guarantees
//!
//! - [`Spans::record`] never blocks and never waits: a full queue drops the span.
//! - The same seed makes the same id, in every version of this program.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use opentelemetry::trace::{Link, SpanContext, SpanKind, Status, TraceContextExt, TraceFlags, TraceState};
pub use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{
    Sampler, SamplingDecision, ShouldSample, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// A position in a trace: the span that others are children of or link to. The wire form is W3C's `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: TraceId,
    /// The span.
    pub span_id: SpanId,
    /// Whether the process that began the trace samples it.
    pub sampled: bool,
}

/// A text that is not a valid `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse traceparent: expected 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, with ids above zero")]
pub struct InvalidTraceContext;

impl FromStr for TraceContext {
    type Err = InvalidTraceContext;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('-');
        let mut hex = |length| parts.next().filter(|part| is_lower_hex(part, length)).ok_or(InvalidTraceContext);
        let (version, trace_id, span_id, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        // Later versions may append parts, version 00 may not; ff is invalid.
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return Err(InvalidTraceContext);
        }
        let trace_id = TraceId::from_hex(trace_id).map_err(|_| InvalidTraceContext)?;
        let span_id = SpanId::from_hex(span_id).map_err(|_| InvalidTraceContext)?;
        let flags = u8::from_str_radix(flags, 16).map_err(|_| InvalidTraceContext)?;
        if trace_id == TraceId::INVALID || span_id == SpanId::INVALID {
            return Err(InvalidTraceContext);
        }
        Ok(Self { trace_id, span_id, sampled: TraceFlags::new(flags).is_sampled() })
    }
}

fn is_lower_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl fmt::Display for TraceContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "00-{}-{}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

impl TraceContext {
    /// The root context of a trace that a seed identifies, such as an object's UID and the operation.
    pub fn from_seed(seed: &str, sampled: bool) -> Self {
        Self::from_parts(&[seed], sampled)
    }

    /// The same of a seed in parts.
    pub fn from_parts(seed: &[&str], sampled: bool) -> Self {
        let half = |salt: &str| u128::from(hash(salt, seed));
        // Never all zero: that is an invalid id.
        let trace_id = TraceId::from((half("trace-high") << 64 | half("trace-low")).max(1));
        Self { trace_id, span_id: span_id_of(seed), sampled }
    }

    /// The span of the request that made this generation of an object, for kinds whose objects are not stamped with it: those who
    /// review the request and those who act on it find the same span. It is below the span that a user chose for the object, or the
    /// root of a trace that is always sampled, because nobody could say later whether it was.
    pub fn of_change(uid: &str, generation: i64, chosen: Option<Self>) -> Self {
        let seed = format!("{uid}/{generation}/admission");
        chosen.map_or_else(|| Self::from_seed(&seed, true), |chosen| chosen.at(span_id(&seed)))
    }

    /// The context in an annotation. Any user may write an annotation: a value that does not parse is ignored, and only the
    /// printed form of a parsed value may become a header or another object's annotation.
    pub fn from_annotation(annotations: Option<&BTreeMap<String, String>>, key: &str) -> Option<Self> {
        Self::read(annotations?.get(key)?)
    }

    /// The same in another text of an object.
    pub fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    /// Prepares annotations for a copy from one object to another: prints the context under `key` afresh, and removes it if it
    /// does not parse.
    pub fn normalize(annotations: &mut BTreeMap<String, String>, key: &str) {
        match Self::from_annotation(Some(annotations), key) {
            Some(context) => annotations.insert(key.to_owned(), context.to_string()),
            None => annotations.remove(key),
        };
    }

    /// The context of a child span in the same trace.
    #[must_use]
    pub fn at(self, span_id: SpanId) -> Self {
        Self { span_id, ..self }
    }

    fn to_span_context(self, sampled: bool, remote: bool) -> SpanContext {
        let flags = TraceFlags::default().with_sampled(sampled);
        SpanContext::new(self.trace_id, self.span_id, flags, remote, TraceState::NONE)
    }
}

/// The id of the span that `seed` identifies: the same in every process and every version.
pub fn span_id(seed: &str) -> SpanId {
    span_id_of(&[seed])
}

/// The same of a seed in parts.
pub fn span_id_of(seed: &[&str]) -> SpanId {
    SpanId::from(hash("span", seed).max(1))
}

/// FNV-1a with the finaliser of `MurmurHash3`: well mixed, and stable for ever, unlike the hashers of the standard library.
fn hash(salt: &str, seed: &[&str]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let seed = seed.iter().flat_map(|part| part.bytes());
    for byte in salt.bytes().chain([0]).chain(seed).chain([0]) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The context of the current `tracing` span, for the `traceparent` of requests; `None` if nothing is traced.
pub fn current() -> Option<TraceContext> {
    of(&tracing::Span::current())
}

/// The context of a `tracing` span; `None` if it is not traced.
pub fn of(span: &tracing::Span) -> Option<TraceContext> {
    let context = span.context();
    let span = context.span();
    let own = span.span_context();
    let found = TraceContext { trace_id: own.trace_id(), span_id: own.span_id(), sampled: own.is_sampled() };
    own.is_valid().then_some(found)
}

/// The target of spans that exist only for the log: they give context to log lines and are not part of a trace.
pub const LOG_ONLY: &str = "nodewright_log";

/// Makes a `tracing` span that has not been entered a child of a span that this process may not have: a reconcile of the operation in
/// progress on its object.
pub fn set_parent(span: &tracing::Span, parent: TraceContext) {
    let parent = opentelemetry::Context::new().with_remote_span_context(parent.to_span_context(parent.sampled, true));
    // It fails without a layer of OpenTelemetry, and then there is no span.
    drop(span.set_parent(parent));
}

/// Links a `tracing` span to a span of another trace: a reconcile to an operation on its object that has ended, and must not grow.
pub fn link(span: &tracing::Span, to: TraceContext) {
    span.add_link(to.to_span_context(to.sampled, true));
}

/// An operation that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanRecord {
    /// The operation, in a few constant words, and the name of what it is about if there are several in a trace.
    pub name: Cow<'static, str>,
    /// The trace and the parent span. If `id` is that span itself, the record *is* that span and the root of its trace.
    pub context: TraceContext,
    /// The span itself; see [`span_id`].
    pub id: SpanId,
    /// Related spans in other traces: a machine's earlier episode, or the reconcile that detected the end.
    pub links: Vec<TraceContext>,
    /// When it began.
    pub start: Timestamp,
    /// When it ended; not before it began.
    pub end: Timestamp,
    /// Further attributes.
    pub attributes: Vec<(&'static str, String)>,
    /// The error, if it failed. Failures are exported even if the trace is not sampled.
    pub error: Option<String>,
}

impl SpanRecord {
    /// A child of the span in `context`. `seed` identifies the child among all spans.
    pub fn child(
        name: impl Into<Cow<'static, str>>,
        context: TraceContext,
        seed: &str,
        start: Timestamp,
        end: Timestamp,
    ) -> Self {
        Self { id: span_id(seed), ..Self::root(name, context, start, end) }
    }

    /// The span in `context`, as the root of its trace.
    pub fn root(name: impl Into<Cow<'static, str>>, context: TraceContext, start: Timestamp, end: Timestamp) -> Self {
        let name = name.into();
        Self { name, context, id: context.span_id, links: vec![], start, end, attributes: vec![], error: None }
    }

    /// The span at `context`, below `parent`, or the root of its trace if that is the same.
    pub fn at(
        name: impl Into<Cow<'static, str>>,
        context: TraceContext,
        parent: TraceContext,
        (start, end): (Timestamp, Timestamp),
    ) -> Self {
        Self { id: context.span_id, ..Self::root(name, parent, start, end.max(start)) }
    }

    fn into_data(self, scope: InstrumentationScope) -> SpanData {
        let is_root = self.id == self.context.span_id;
        let start_time = SystemTime::from(self.start);
        let mut links = SpanLinks::default();
        links.links =
            self.links.iter().map(|link| Link::new(link.to_span_context(link.sampled, true), vec![], 0)).collect();
        SpanData {
            // Mark it as sampled: `record` has already decided to export it.
            span_context: self.context.at(self.id).to_span_context(true, false),
            parent_span_id: if is_root { SpanId::INVALID } else { self.context.span_id },
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: self.name,
            start_time,
            end_time: SystemTime::from(self.end).max(start_time),
            attributes: self.attributes.into_iter().map(|(key, value)| KeyValue::new(key, value)).collect(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status: self.error.map_or(Status::Unset, Status::error),
            instrumentation_scope: scope,
        }
    }
}

/// The destination of finished spans. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    export: Option<Arc<Export>>,
}

#[derive(Debug)]
struct Export {
    processor: Arc<dyn SpanProcessor>,
    scope: InstrumentationScope,
    sampler: Sampler,
}

impl Spans {
    /// Exports no spans.
    pub fn disabled() -> Self {
        Self::default()
    }

    /// Whether spans go anywhere at all.
    pub fn are_exported(&self) -> bool {
        self.export.is_some()
    }

    /// Passes spans to `processor`, with the instrumentation scope `name`. `ratio` is the sampling ratio of traces that begin
    /// here (0 to 1).
    pub fn new(processor: Arc<dyn SpanProcessor>, name: &'static str, ratio: f64) -> Self {
        let scope = InstrumentationScope::builder(name).build();
        Self { export: Some(Arc::new(Export { processor, scope, sampler: Sampler::TraceIdRatioBased(ratio) })) }
    }

    /// The context of a new trace that `seed` identifies. Sampling depends only on its id and the ratio, so that every process
    /// decides alike.
    pub fn begin(&self, seed: &str) -> TraceContext {
        let context = TraceContext::from_seed(seed, false);
        let sampled = self.export.as_ref().is_some_and(|export| {
            let result = export.sampler.should_sample(None, context.trace_id, "", &SpanKind::Internal, &[], &[]);
            result.decision == SamplingDecision::RecordAndSample
        });
        TraceContext { sampled, ..context }
    }

    /// Exports a finished span, if its trace is sampled or it failed. Never blocks.
    pub fn record(&self, record: SpanRecord) {
        if let Some(export) = &self.export
            && (record.context.sampled || record.error.is_some())
        {
            export.processor.on_end(record.into_data(export.scope.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opentelemetry_sdk::error::OTelSdkResult;
    use parking_lot::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Collected(Mutex<Vec<SpanData>>);

    impl SpanProcessor for Collected {
        fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &opentelemetry::Context) {}
        fn on_end(&self, span: SpanData) {
            self.0.lock().push(span);
        }
        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }
        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn sample() -> SpanRecord {
        let context = TraceContext::from_seed("uid-1/birth", true);
        SpanRecord::child("create", context, "uid-1/create", at("2026-11-20T10:00:00Z"), at("2026-11-20T10:00:30Z"))
    }

    #[test]
    fn traceparent_is_read_and_written() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context: TraceContext = text.parse().unwrap();
        assert!(context.sampled);
        assert_eq!(context.to_string(), text);
        assert!(!text.replace("-01", "-02").parse::<TraceContext>().unwrap().sampled);
        assert!(text.replace("00-4", "01-4").parse::<TraceContext>().is_ok(), "a later version is read as this one");
    }

    #[test]
    fn what_is_no_traceparent_is_refused() {
        for text in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "x\n",
        ] {
            assert_eq!(text.parse::<TraceContext>(), Err(InvalidTraceContext), "{text}");
        }
    }

    #[test]
    fn only_the_printed_form_is_copied() {
        let normalized = |text: &str| {
            let mut annotations = BTreeMap::from([("trace".to_owned(), text.to_owned())]);
            TraceContext::normalize(&mut annotations, "trace");
            annotations.remove("trace")
        };
        let printed = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(normalized(printed).as_deref(), Some(printed));
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what\nthe future brings";
        assert_eq!(normalized(later).as_deref(), Some(printed));
        assert_eq!(normalized("x\n"), None);
    }

    #[test]
    fn ids_are_fixed_for_all_time() {
        // A change of the hash would duplicate the spans of machines that exist during an upgrade.
        assert_eq!(span_id("uid-1/create").to_string(), "b8a3c8278e239663");
        assert_eq!(TraceContext::from_seed("uid-1", true).trace_id.to_string(), "2c34626c109b79e4007be747f8a039c4");
        assert_eq!(span_id_of(&["uid-1", "/", "create"]), span_id("uid-1/create"));
        assert_eq!(TraceContext::from_parts(&["uid", "-1"], true), TraceContext::from_seed("uid-1", true));
        assert_ne!(span_id("ab"), span_id("ba"));
        let of_change = |generation, chosen| TraceContext::of_change("uid-1", generation, chosen);
        assert_eq!(of_change(1, None).to_string(), "00-b45536e010f94cad2966fc89d7a0d33f-9c47ebf2f79cff4a-01");
        let (root, chosen) = (of_change(2, None), TraceContext::from_seed("chosen", false));
        let below = of_change(2, Some(chosen));
        assert_eq!((below.trace_id, below.span_id, below.sampled), (chosen.trace_id, root.span_id, false));
    }

    #[test]
    fn a_record_keeps_its_own_times_and_ids() {
        let collected = Arc::new(Collected::default());
        let spans = Spans::new(collected.clone(), "machine", 1.0);
        let link = TraceContext::from_seed("uid-0", false);
        spans.record(SpanRecord { links: vec![link], attributes: vec![("machine.name", "a".into())], ..sample() });
        spans.record(sample());
        let spans = std::mem::take(&mut *collected.0.lock());
        assert_eq!(spans[0].span_context, spans[1].span_context, "a repeat is the same span");
        assert_eq!(spans[0].span_context.trace_id(), sample().context.trace_id);
        assert_eq!(spans[0].parent_span_id, sample().context.span_id);
        let took = spans[0].end_time.duration_since(spans[0].start_time).unwrap();
        assert_eq!(took, Duration::from_secs(30));
        assert_eq!(spans[0].links.links[0].span_context.trace_id(), link.trace_id);
        assert_eq!(spans[0].attributes, [KeyValue::new("machine.name", "a")]);
    }

    #[test]
    fn a_root_has_no_parent_and_an_end_before_the_start_is_put_right() {
        let collected = Arc::new(Collected::default());
        let context = TraceContext::from_seed("uid-1/birth", true);
        let (late, early) = (at("2026-11-20T10:00:30Z"), at("2026-11-20T10:00:00Z"));
        Spans::new(collected.clone(), "machine", 1.0).record(SpanRecord::root("birth", context, late, early));
        let span = &collected.0.lock()[0];
        assert_eq!(span.parent_span_id, SpanId::INVALID);
        assert_eq!(span.span_context.span_id(), context.span_id);
        assert_eq!(span.start_time, span.end_time);
    }

    #[test]
    fn unsampled_spans_are_exported_only_when_they_failed() {
        let collected = Arc::new(Collected::default());
        let spans = Spans::new(collected.clone(), "machine", 0.0);
        let context = spans.begin("uid-1/birth");
        assert!(!context.sampled);
        spans.record(SpanRecord { context, ..sample() });
        assert!(collected.0.lock().is_empty());
        spans.record(SpanRecord { context, error: Some("no capacity".into()), ..sample() });
        let span = &collected.0.lock()[0];
        assert_eq!(span.status, Status::error("no capacity"));
        assert!(span.span_context.is_sampled(), "or the exporter would drop it");
    }

    #[test]
    fn the_ratio_decides_by_the_id_alone() {
        let spans = |ratio| Spans::new(Arc::new(Collected::default()), "machine", ratio);
        let kept = (0..1_000).filter(|index| spans(0.25).begin(&format!("uid-{index}")).sampled).count();
        assert!((200..300).contains(&kept), "{kept}");
        assert!((0..100).all(|index| spans(1.0).begin(&format!("uid-{index}")).sampled));
        assert!(!Spans::disabled().begin("uid-1").sampled);
    }
}
