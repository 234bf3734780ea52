//! The driver with answers that a test has written, and with moto's EC2.

mod aws;
mod contract;
mod credentials;
mod moto;
mod temporary;

use std::{collections::VecDeque, convert::Infallible, future::ready};

use http::{Method, StatusCode};
use nodewright_driver::SecretData;
use nodewright_driver_contract::{class, machine};
use parking_lot::Mutex;
use serde_json::Value;

use super::*;
use crate::{
    credentials::tests::secret,
    spec::tests::{full, small},
};

const VM: &str = "i-0123456789abcdef0";
const KEYS: [(&str, &str); 2] = [("accessKeyID", "AKIATEST"), ("secretAccessKey", "hunter2")];

fn keys() -> SecretData {
    secret(&KEYS)
}

fn class_of(spec: &Value) -> Class {
    Class { secret: keys(), ..class(spec) }
}

/// Requests that were made, as their URL, their header `authorization` and their body.
type Asked = Arc<Mutex<Vec<[String; 3]>>>;

/// A driver whose requests are answered one after the other, the last answer again and again.
fn scripted(answers: &[(u16, &str)]) -> (AwsDriver, Asked) {
    let answers: Arc<Mutex<VecDeque<_>>> =
        Arc::new(Mutex::new(answers.iter().map(|(status, body)| (*status, (*body).to_owned())).collect()));
    let asked = Asked::default();
    let noted = asked.clone();
    let service = tower::service_fn(move |request: Request<Full<Bytes>>| {
        assert_eq!(request.method(), Method::POST);
        let authorization = request.headers()["authorization"].to_str().unwrap().to_owned();
        let (answers, noted, url) = (answers.clone(), noted.clone(), request.uri().to_string());
        async move {
            let body = request.into_body().collect().await?.to_bytes();
            noted.lock().push([url, authorization, String::from_utf8(body.to_vec()).unwrap()]);
            let mut answers = answers.lock();
            let (status, text) =
                if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() }.unwrap();
            let answer = Response::builder().status(StatusCode::from_u16(status).unwrap());
            Ok::<_, Infallible>(answer.body(Full::new(Bytes::from(text))).unwrap())
        }
    });
    (AwsDriver::with_service(service, &Options::default(), 5).unwrap(), asked)
}

fn vm(id: &str, state: &str, tags: &[(&str, &str)]) -> String {
    let tags = tags
        .iter()
        .map(|(key, value)| format!("<item><key>{key}</key><value>{value}</value></item>"))
        .collect::<Vec<_>>()
        .concat();
    format!(
        "<item><instanceId>{id}</instanceId><instanceState><name>{state}</name></instanceState><clientToken>uid-of-m</clientToken>\
         <privateDnsName>ip-10-0-0-4.eu-west-1.compute.internal</privateDnsName><privateIpAddress>10.0.0.4</privateIpAddress>\
         <tagSet>{tags}</tagSet><networkInterfaceSet><item><networkInterfaceId>eni-1</networkInterfaceId>\
         <sourceDestCheck>true</sourceDestCheck></item></networkInterfaceSet></item>"
    )
}

fn page(vms: &[String], next: &str) -> String {
    let vms: Vec<String> = vms.iter().map(|vm| format!("<item><instancesSet>{vm}</instancesSet></item>")).collect();
    let vms = vms.concat();
    format!(
        "<DescribeInstancesResponse><reservationSet>{vms}</reservationSet><nextToken>{next}</nextToken></DescribeInstancesResponse>"
    )
}

fn refused(code: &str) -> String {
    format!("<Response><Errors><Error><Code>{code}</Code><Message>m</Message></Error></Errors></Response>")
}

const OURS: [(&str, &str); 3] = [("kubernetes.io/cluster/c", "1"), ("kubernetes.io/role/node", "1"), ("Name", "m")];

/// What each call about a Machine fails with.
async fn failures(driver: &AwsDriver, request: &MachineRequest) -> [DriverError; 4] {
    [
        driver.create(request.clone()).await.unwrap_err(),
        driver.status(request.clone()).await.unwrap_err(),
        driver.delete(request.clone()).await.unwrap_err(),
        driver.list(request.class.clone()).await.unwrap_err(),
    ]
}

#[tokio::test]
async fn a_request_is_signed_for_the_host_of_its_region() {
    let (driver, asked) = scripted(&[(200, &page(&[], ""))]);
    driver.list(class_of(&small("c"))).await.unwrap();
    let mut china = small("c");
    china["region"] = "cn-north-1".into();
    driver.list(class_of(&china)).await.unwrap();
    let asked = asked.lock();
    let [url, authorization, body] = &asked[0];
    assert_eq!(
        (url.as_str(), asked[1][0].as_str()),
        ("https://ec2.eu-west-1.amazonaws.com/", "https://ec2.cn-north-1.amazonaws.com.cn/")
    );
    assert!(authorization.starts_with("AWS4-HMAC-SHA256 Credential=AKIATEST/"), "{authorization}");
    assert!(
        authorization.contains("/eu-west-1/ec2/aws4_request, SignedHeaders=content-type;host;x-amz-date"),
        "{authorization}"
    );
    assert!(body.starts_with("Action=DescribeInstances&Version=2016-11-15&") && !body.contains("hunter2"), "{body}");
}

#[tokio::test]
async fn a_list_has_all_pages_and_only_vms_of_the_cluster() {
    let other = [("kubernetes.io/cluster/d", "1"), ("kubernetes.io/role/node", "1"), ("Name", "m")];
    let unnamed = [OURS[0], OURS[1]];
    let first = page(&[vm("i-00000001", "running", &OURS), vm("i-00000002", "running", &other)], "more");
    let second = page(
        &[
            vm("i-00000003", "shutting-down", &OURS),
            vm("i-00000004", "terminated", &OURS),
            vm("i-00000005", "running", &unnamed),
        ],
        "",
    );
    let (driver, asked) = scripted(&[(200, &first), (200, &second)]);
    let listed = driver.list(class_of(&small("c"))).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|(id, vm)| (id.as_str(), vm.is_deleting)).collect();
    assert_eq!(listed, [("aws:///eu-west-1/i-00000001", false), ("aws:///eu-west-1/i-00000003", true)]);
    assert!(asked.lock()[1][2].ends_with("&MaxResults=5&NextToken=more"));
}

#[tokio::test]
async fn requests_count_by_what_they_ask_for() {
    let (driver, _) = scripted(&[(200, &page(&[], "more")), (200, &page(&[], "")), (400, &refused("Blocked"))]);
    driver.list(class_of(&small("c"))).await.unwrap();
    let request = MachineRequest {
        provider_id: Some(provider_id("eu-west-1", VM)),
        is_proven: true,
        ..machine("m", class_of(&small("c")))
    };
    driver.status(request).await.unwrap_err();
    let counted = driver.requests().unwrap();
    let counted: Vec<_> = counted.iter().map(|of| (of.service.as_str(), of.made, of.failed)).collect();
    assert_eq!(counted, [("instance_get_by_id", 0, 1), ("instance_get_by_tag_and_status", 2, 0)]);
}

#[tokio::test]
async fn a_list_that_does_not_end_is_an_error() {
    let (driver, asked) = scripted(&[(200, &page(&[], "again"))]);
    assert_eq!(driver.list(class_of(&small("c"))).await.unwrap_err().code, Code::Internal);
    assert_eq!(asked.lock().len(), 2);
}

#[tokio::test]
async fn an_answer_that_is_not_ec2s_is_believed_by_no_call() {
    let huge = format!("<DescribeInstancesResponse>{}", " ".repeat(ANSWER_LIMIT + 1));
    for (status, body) in
        [(200, "<html>"), (200, ""), (200, "<a/>"), (502, "<html>"), (404, "not found"), (200, huge.as_str())]
    {
        let (driver, _) = scripted(&[(status, body)]);
        let request = MachineRequest {
            provider_id: Some(provider_id("eu-west-1", VM)),
            is_proven: true,
            ..machine("m", class_of(&small("c")))
        };
        for error in failures(&driver, &request).await {
            let expected = if status == 404 { vec![Code::Internal] } else { vec![Code::Unknown, Code::Unavailable] };
            assert!(expected.contains(&error.code), "{status}: {error}");
        }
    }
}

/// A deletion whose answer was lost may still be under way.
#[tokio::test]
async fn a_vm_of_which_a_part_is_gone_is_asked_to_end_again() {
    let shown = page(&[vm(VM, "running", &OURS)], "");
    for (code, expected) in
        [("InvalidNetworkInterfaceID.NotFound", Code::Aborted), ("InvalidParameterValue", Code::InvalidArgument)]
    {
        let (driver, _) = scripted(&[(200, &shown), (400, &refused(code))]);
        let request =
            MachineRequest { provider_id: Some(provider_id("eu-west-1", VM)), ..machine("m", class_of(&small("c"))) };
        assert_eq!(driver.delete(request).await.unwrap_err().code, expected);
    }
}

#[tokio::test]
async fn a_changed_class_finds_the_vm_of_its_token() {
    let (driver, _) = scripted(&[(400, &refused(OTHER_PARAMETERS)), (200, &page(&[vm(VM, "running", &OURS)], ""))]);
    let made = driver.create(machine("m", class_of(&small("c")))).await.unwrap();
    assert_eq!(made.provider_id, provider_id("eu-west-1", VM));
    let (driver, _) = scripted(&[(400, &refused(OTHER_PARAMETERS)), (200, &page(&[], ""))]);
    assert_eq!(driver.create(machine("m", class_of(&small("c")))).await.unwrap_err().code, Code::Unavailable);
}

#[tokio::test]
async fn the_source_check_is_switched_off_where_the_class_says_so() {
    let shown = page(&[vm(VM, "running", &OURS)], "");
    let request = |spec: &Value| machine("m", class_of(spec));
    let (driver, asked) = scripted(&[(200, &shown), (200, &shown), (200, "<R><requestId>r</requestId></R>")]);
    assert!(driver.status(request(&full("c"))).await.unwrap().uninitialized);
    let done = driver.initialize(request(&full("c"))).await.unwrap();
    assert!(!done.uninitialized);
    assert!(asked.lock()[2][2].contains(
        "Action=ModifyNetworkInterfaceAttribute&Version=2016-11-15&NetworkInterfaceId=eni-1&SourceDestCheck.Value=false"
    ));
    let (driver, asked) = scripted(&[(200, &shown)]);
    assert!(!driver.status(request(&small("c"))).await.unwrap().uninitialized);
    assert_eq!(driver.initialize(request(&small("c"))).await.unwrap_err().code, Code::Unimplemented);
    assert_eq!(asked.lock().len(), 1);
}

/// EC2 refuses to switch it off, and the machine would never be ready.
#[tokio::test]
async fn the_source_check_of_an_elastic_fabric_adapter_is_left_on() {
    let request = || machine("m", class_of(&full("c")));
    for (kind, is_left) in [("efa", true), ("efa-only", true), ("interface", false)] {
        let kind = format!("<interfaceType>{kind}</interfaceType><sourceDestCheck>");
        let shown = page(&[vm(VM, "running", &OURS).replace("<sourceDestCheck>", &kind)], "");
        let (driver, asked) = scripted(&[(200, &shown), (200, &shown), (200, "<R><requestId>r</requestId></R>")]);
        assert_eq!(driver.status(request()).await.unwrap().uninitialized, !is_left, "{kind}");
        driver.initialize(request()).await.unwrap();
        assert_eq!(asked.lock().len(), if is_left { 2 } else { 3 }, "{kind}");
    }
}

#[tokio::test]
async fn a_vm_that_ended_after_its_creation_is_not_answered_with() {
    for state in ["shutting-down", "terminated"] {
        let made = format!(
            "<RunInstancesResponse><instancesSet>{}</instancesSet></RunInstancesResponse>",
            vm(VM, state, &OURS)
        );
        let (driver, _) = scripted(&[(200, &made)]);
        assert_eq!(
            driver.create(machine("m", class_of(&small("c")))).await.unwrap_err().code,
            Code::FailedPrecondition
        );
    }
}

#[test]
fn an_endpoint_is_a_host() {
    let driver = |options: &Options| {
        let service = tower::service_fn(|_: Request<Full<Bytes>>| {
            ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
        });
        AwsDriver::with_service(service, options, 5)
    };
    let each = |url: &str| {
        let url = Some(url.to_owned());
        [
            Options { endpoint: url.clone(), ..Options::default() },
            Options { sts_endpoint: url.clone(), ..Options::default() },
            Options { metadata_endpoint: url, ..Options::default() },
        ]
    };
    for good in ["http://127.0.0.1:5000", "http://[fd00:ec2::254]", "https://vpce-1.ec2.eu-west-1.vpce.amazonaws.com/"]
    {
        assert!(each(good).iter().all(|options| driver(options).is_ok()), "{good}");
    }
    for bad in ["", "ec2.eu-west-1.amazonaws.com", "ftp://h", "http://", "http://h/path", "http://h/?q=1"] {
        assert!(each(bad).iter().all(|options| driver(options).is_err()), "{bad}");
    }
}
