//! The functions of templates.

use super::LARGEST_OUTPUT;
use super::platform::Platform;
use gotmpl::{FuncMap, Result, Template, TemplateError, Value, ValueFunc};
use http::Uri;
use std::sync::Arc;

/// The name of the function that reads a field. No template can write it.
pub(super) const FIELD: &str = "field of";
/// The name of the function that takes what is to be printed. No template can write it.
pub(super) const PRINTED: &str = "is printed";

/// Functions of Go that make texts of texts.
const GROWING: [&str; 6] = ["print", "printf", "println", "html", "js", "urlquery"];

pub(super) fn all(platform: &Arc<Platform>) -> FuncMap {
    let own: [(&str, ValueFunc); 8] = [
        (FIELD, Arc::new(field)),
        (PRINTED, Arc::new(printed)),
        ("skip", Arc::new(skip)),
        ("join", Arc::new(join)),
        ("indent", Arc::new(indent)),
        ("toString", to_string()),
        ("urlHost", Arc::new(url_host)),
        ("urlPort", Arc::new(url_port)),
    ];
    let own = own.into_iter().map(|(name, function)| (name.to_owned(), function));
    let of_platform =
        PLATFORM.into_iter().map(|(name, result)| (name.to_owned(), of_platform(name, platform.clone(), result)));
    own.chain(of_platform).chain(GROWING.map(|name| (name.to_owned(), bounded(name)))).collect()
}

/// What a function says of a platform.
type Said = fn(&Platform) -> std::result::Result<Value, String>;

/// The functions about the platform. Machine-config-operator's take the data of the template as an argument; here it may be left
/// out.
const PLATFORM: [(&str, Said); 13] = [
    ("platformType", |platform| Ok(text(&platform.kind))),
    ("cloudProvider", |platform| Ok(text(platform.cloud_provider()))),
    ("credentialProviderConfigFlag", |platform| Ok(text(&platform.credential_provider_flags()))),
    ("onPremPlatformShortName", |platform| Ok(text(&platform.on_premises_name()))),
    ("onPremPlatformAPIServerInternalIP", |platform| first(&platform.on_premises_ips("apiServerInternalIPs")?)),
    ("onPremPlatformAPIServerInternalIPs", |platform| Ok(list(&platform.on_premises_ips("apiServerInternalIPs")?))),
    ("onPremPlatformIngressIP", |platform| first(&platform.on_premises_ips("ingressIPs")?)),
    ("onPremPlatformIngressIPs", |platform| Ok(list(&platform.on_premises_ips("ingressIPs")?))),
    ("isOpenShiftManagedDefaultLB", |platform| Ok(Value::Bool(platform.has_managed_load_balancer()))),
    ("dnsRecordsType", |platform| Ok(text(platform.dns_records_type()))),
    ("cloudPlatformAPIIntLoadBalancerIPs", |platform| Ok(list(&platform.cloud_ips("apiIntLoadBalancerIPs")?))),
    ("cloudPlatformAPILoadBalancerIPs", |platform| Ok(list(&platform.cloud_ips("apiLoadBalancerIPs")?))),
    ("cloudPlatformIngressLoadBalancerIPs", |platform| Ok(list(&platform.cloud_ips("ingressLoadBalancerIPs")?))),
];

fn of_platform(name: &'static str, platform: Arc<Platform>, said: Said) -> ValueFunc {
    Arc::new(move |args| {
        if args.len() > 1 {
            return fail(format!("{name}: takes no argument but the data of the template"));
        }
        said(&platform).or_else(|detail| fail(format!("{name}: {detail}")))
    })
}

fn text(text: &str) -> Value {
    Value::String(text.into())
}

fn list(texts: &[String]) -> Value {
    Value::List(texts.iter().map(|it| text(it)).collect())
}

fn first(texts: &[String]) -> std::result::Result<Value, String> {
    texts.first().map(|it| text(it)).ok_or("there are no addresses".to_owned())
}

fn fail<T>(detail: impl Into<String>) -> Result<T> {
    Err(TemplateError::Exec(detail.into()))
}

/// A field, or one of a field, and so on. Its name is taken as it is written, or else in any case.
fn field(args: &[Value]) -> Result<Value> {
    let Some((mut value, names)) = args.split_first() else { return fail("there is nothing to read a field of") };
    for name in names.iter().filter_map(Value::as_str) {
        let entries = match value {
            Value::Map(entries) => entries,
            Value::Nil => return fail(format!("there is no {name} in null")),
            Value::String(_) => return fail(format!("there is no {name} in text")),
            other => return fail(format!("there is no {name} in {}", other.type_name())),
        };
        let mut similar = entries.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        value = match (entries.get(name), similar.next(), similar.next()) {
            (Some(value), _, _) | (None, Some((_, value)), None) => value,
            (None, Some(_), Some(_)) => return fail(format!("{name} stands for several fields: write it as it is")),
            (None, None, _) => return fail(format!("there is no field {name}")),
        };
    }
    read(value)
}

/// Go prints `<no value>`.
fn printed(args: &[Value]) -> Result<Value> {
    match args {
        [Value::Nil] | [] => fail("prints null: ask with `if` whether there is a value"),
        [value, ..] => read(value),
    }
}

/// A value. One that records that it is read, or that cannot be read, is a function.
fn read(value: &Value) -> Result<Value> {
    match value {
        Value::Function(read) => read(&[]),
        value => Ok(value.clone()),
    }
}

/// Leaves a field for what reads the result, such as a server of Ignition configs.
fn skip(args: &[Value]) -> Result<Value> {
    let is_first = |c: char| c == '_' || c.is_ascii_lowercase();
    let is_key = |key: &str| key.starts_with(is_first) && key.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
    match args {
        [Value::String(key)] if is_key(key) => Ok(Value::String(format!("{{{{.{key}}}}}").into())),
        _ => fail("skip: takes a key of letters, digits and `_`, which begins with a lower-case letter or `_`"),
    }
}

fn join(args: &[Value]) -> Result<Value> {
    let [Value::List(list), Value::String(separator)] = args else { return wrong_join() };
    let Some(texts) = list.iter().map(Value::as_str).collect::<Option<Vec<_>>>() else { return wrong_join() };
    if size(args) + texts.len() * separator.len() > LARGEST_OUTPUT {
        return fail(too_long("join"));
    }
    Ok(Value::String(texts.join(separator).into()))
}

/// A text with blanks at the beginning of each line.
fn indent(args: &[Value]) -> Result<Value> {
    let [Value::Int(count), Value::String(text)] = args else {
        return fail("indent: takes the number of blanks and a text");
    };
    let Some(count) = usize::try_from(*count).ok() else { return fail("indent: the number of blanks is negative") };
    let lines = text.matches('\n').count() + 1;
    if count.saturating_mul(lines).saturating_add(text.len()) > LARGEST_OUTPUT {
        return fail(too_long("indent"));
    }
    let blanks = " ".repeat(count);
    Ok(Value::String(format!("{blanks}{}", text.replace('\n', &format!("\n{blanks}"))).into()))
}

/// What `print` makes of a value. Null is no text.
fn to_string() -> ValueFunc {
    let print = bounded("print");
    Arc::new(move |args| match args {
        [Value::Nil] => fail("toString: null is no text: ask with `if` whether there is a value"),
        [text @ Value::String(_)] => Ok(text.clone()),
        [_] => print(args),
        _ => fail("toString: takes one value"),
    })
}

fn wrong_join<T>() -> Result<T> {
    fail("join: takes a list of texts and a separator")
}

fn url(function: &str, args: &[Value]) -> Result<Uri> {
    let parsed = match args {
        [Value::String(text)] => text.parse().ok(),
        _ => None,
    };
    parsed
        .filter(|url: &Uri| url.scheme().is_some() && url.host().is_some())
        .ok_or(TemplateError::Exec(format!("{function}: must be a URL with scheme and host")))
}

fn url_host(args: &[Value]) -> Result<Value> {
    let url = url("urlHost", args)?;
    let host = url.host().unwrap_or_default();
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    Ok(Value::String(inner.unwrap_or(host).into()))
}

fn url_port(args: &[Value]) -> Result<Value> {
    let url = url("urlPort", args)?;
    match (url.port(), url.scheme_str()) {
        (Some(port), _) => Ok(Value::String(port.as_str().into())),
        (None, Some("https")) => Ok(Value::String("443".into())),
        (None, Some("http")) => Ok(Value::String("80".into())),
        (None, _) => fail("urlPort: no port is written, and only http and https have one of their own"),
    }
}

/// A function of Go whose arguments and whose result are not too long. A text that is doubled again and again would fill the
/// memory.
fn bounded(name: &'static str) -> ValueFunc {
    Arc::new(move |args| {
        if size(args) > LARGEST_OUTPUT {
            return fail(too_long(name));
        }
        if name == "printf" {
            check_format(args.first())?;
        }
        // A built-in function is reached by a template alone.
        let arguments: Vec<_> = (0..args.len()).map(|index| format!("(index . {index})")).collect();
        let call = Template::new("").parse(&format!("{{{{{name} {}}}}}", arguments.join(" ")))?;
        let text = call.execute_to_string(&Value::List(args.into()))?;
        if text.len() > LARGEST_OUTPUT { fail(too_long(name)) } else { Ok(Value::String(text.into())) }
    })
}

fn check_format(format: Option<&Value>) -> Result<()> {
    // The engine would show another value.
    let Some(Value::String(format)) = format else { return fail("printf: its first argument must be a text") };
    if format.contains('*') {
        return fail("printf: a width or precision that is an argument is not supported");
    }
    let mut digits = format.split(|c: char| !c.is_ascii_digit());
    if digits.any(|run| run.len() > 3) {
        return fail("printf: a width or precision of more than three digits is not supported");
    }
    Ok(())
}

fn too_long(function: &str) -> String {
    format!("{function}: more than {LARGEST_OUTPUT} bytes")
}

/// About how many bytes values have when they are printed.
fn size(values: &[Value]) -> usize {
    let of = |value: &Value| match value {
        Value::String(text) => text.len(),
        Value::List(list) => size(list),
        Value::Map(entries) => entries.iter().map(|(key, value)| key.len() + size(std::slice::from_ref(value))).sum(),
        _ => 8,
    };
    values.iter().map(|value| of(value) + 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewright_api::RawJson;
    use nodewright_api::machine_config::ControllerConfigSpec;
    use serde_json::json;

    fn call(function: fn(&[Value]) -> Result<Value>, args: &[&str]) -> Option<String> {
        let args: Vec<_> = args.iter().map(|text| Value::String((*text).into())).collect();
        function(&args).ok().and_then(|value| value.as_str().map(str::to_owned))
    }

    fn run(template: &str) -> std::result::Result<String, String> {
        let status = json!({"type": "VSphere",
            "vsphere": {"apiServerInternalIPs": ["10.0.0.5", "fd00::5"], "dnsRecordsType": "External"}});
        let infra = Some(RawJson::from(&json!({"status": {"platformStatus": status}})));
        let platform = Platform::of(&ControllerConfigSpec { infra, ..ControllerConfigSpec::default() }).unwrap();
        let template = Template::new("").funcs(all(&Arc::new(platform))).parse(template).unwrap();
        template.execute_to_string(&Value::Nil).map_err(|error| error.to_string())
    }

    #[test]
    fn texts_are_indented_and_made_of_values() {
        for (template, expected) in [
            ("{{indent 4 \"a\"}}", Ok("    a")),
            ("{{indent 2 \"a\\nb\\n\"}}", Ok("  a\n  b\n  ")),
            ("{{\"\" | indent 1}}", Ok(" ")),
            ("{{indent 0 \"a\\nb\"}}", Ok("a\nb")),
            ("{{indent -1 \"a\"}}", Err("indent: the number of blanks is negative")),
            ("{{indent \"a\" 1}}", Err("indent: takes the number of blanks and a text")),
            ("{{indent 1000000000 \"a\"}}", Err("indent: more than 524288 bytes")),
            ("{{indent 9223372036854775807 \"\\n\"}}", Err("indent: more than 524288 bytes")),
            ("{{\"a\" | toString | indent 1}}", Ok(" a")),
            ("{{toString 7}}{{toString true}}", Ok("7true")),
            ("{{toString (onPremPlatformAPIServerInternalIPs .)}}", Ok("[10.0.0.5 fd00::5]")),
            ("{{toString .}}", Err("toString: null is no text")),
            ("{{toString 1 2}}", Err("toString: takes one value")),
        ] {
            match expected {
                Ok(text) => assert_eq!(run(template).as_deref(), Ok(text), "{template}"),
                Err(text) => assert!(run(template).unwrap_err().contains(text), "{template}: {:?}", run(template)),
            }
        }
    }

    #[test]
    fn functions_say_what_the_platform_is() {
        for (template, expected) in [
            ("{{platformType .}}{{platformType}}", Ok("VSphereVSphere")),
            ("{{if eq (cloudProvider .) \"external\"}}a{{end}}", Ok("a")),
            ("{{credentialProviderConfigFlag .}}", Ok("")),
            ("{{onPremPlatformShortName .}}", Ok("vsphere")),
            (
                "{{range $i, $ip := onPremPlatformAPIServerInternalIPs .}}{{$i}}={{$ip}};{{end}}",
                Ok("0=10.0.0.5;1=fd00::5;"),
            ),
            ("{{onPremPlatformAPIServerInternalIP .}}", Ok("10.0.0.5")),
            ("{{len (onPremPlatformIngressIPs .)}}", Ok("0")),
            ("{{onPremPlatformIngressIP .}}", Err("onPremPlatformIngressIP: there are no addresses")),
            ("{{isOpenShiftManagedDefaultLB .}}", Ok("true")),
            ("{{if ne (dnsRecordsType .) \"External\"}}a{{else}}b{{end}}", Ok("b")),
            ("{{cloudPlatformAPIIntLoadBalancerIPs .}}", Err("platform VSphere has no cloudLoadBalancerConfig")),
            ("{{cloudPlatformAPILoadBalancerIPs .}}", Err("platform VSphere has no cloudLoadBalancerConfig")),
            ("{{cloudPlatformIngressLoadBalancerIPs .}}", Err("platform VSphere has no cloudLoadBalancerConfig")),
            ("{{cloudProvider . .}}", Err("cloudProvider: takes no argument but")),
        ] {
            match expected {
                Ok(text) => assert_eq!(run(template).as_deref(), Ok(text), "{template}"),
                Err(text) => assert!(run(template).unwrap_err().contains(text), "{template}: {:?}", run(template)),
            }
        }
    }

    #[test]
    fn urls_have_hosts_and_ports() {
        for (url, host, port) in [
            ("https://api-int.example.com:6443", Some("api-int.example.com"), Some("6443")),
            ("https://api.example.com/path?q=1", Some("api.example.com"), Some("443")),
            ("http://user@api.example.com", Some("api.example.com"), Some("80")),
            ("https://[fd00::1]:6443", Some("fd00::1"), Some("6443")),
            ("ftp://files.example.com", Some("files.example.com"), None),
            ("api.example.com:6443", None, None),
            ("/path", None, None),
            ("not a url", None, None),
            ("", None, None),
        ] {
            assert_eq!(call(url_host, &[url]).as_deref(), host, "{url}");
            assert_eq!(call(url_port, &[url]).as_deref(), port, "{url}");
        }
        assert_eq!(call(url_host, &["https://a", "https://b"]), None);
    }
}
