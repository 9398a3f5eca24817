//! A client of any service.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, ServiceDescriptor};
use starling::reflection::{DescribeServiceRequest, ListServicesRequest, ReflectionClient};
use starling::{CallOptions, Channel, MetadataView, ProtobufCall, ProtobufResponse, Status};

use crate::json;
use crate::method::DynamicMethod;

/// Makes calls of methods that are known at run time. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DynamicClient {
    channel: Channel,
    options: CallOptions,
}

impl DynamicClient {
    /// A client of the channel's server.
    pub fn new(channel: Channel) -> Self {
        Self {
            channel,
            options: CallOptions::default(),
        }
    }

    /// The options of all calls, also of those that ask for descriptions.
    #[must_use]
    pub fn with_options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    fn reflection(&self) -> ReflectionClient<Channel> {
        ReflectionClient::new(self.channel.clone()).with_options(self.options.clone())
    }

    /// The names of the server's services.
    pub async fn services(&self) -> Result<Vec<String>, Status> {
        let list = self.reflection().list_services(&ListServicesRequest::new());
        let list = list.await?;
        let services = list.message().services().iter();
        Ok(services.map(|service| service.name().to_owned()).collect())
    }

    /// A service with all its types, as the server describes it.
    ///
    /// # Errors
    /// UNIMPLEMENTED if the server has no such service; the text names those that it has.
    pub async fn service(&self, name: &str) -> Result<ServiceDescriptor, Status> {
        let names = self.services().await?;
        if !names.iter().any(|known| known == name) {
            let as_method = (name.rsplit_once('.'))
                .filter(|(service, _)| names.iter().any(|known| known == service))
                .map_or_else(String::new, |(service, method)| {
                    format!("; for a method write {service}/{method}")
                });
            let names = names.join(", ");
            return Err(Status::unimplemented(format!(
                "the server has no service {name}; it has {names}{as_method}"
            ))
            .with_not_run());
        }
        let mut request = DescribeServiceRequest::new();
        request.set_name(name);
        let described = self.reflection().describe_service(&request).await?;
        let set = described.message().file_descriptor_set();
        let pool = DescriptorPool::decode(set).map_err(|error| {
            let text = format!("the server's description of {name} is malformed: {error}");
            Status::internal(text)
        })?;
        pool.get_service_by_name(name).ok_or_else(|| {
            let text = format!("the server's description of {name} does not contain it");
            Status::internal(text)
        })
    }

    /// A method by its path, `package.Service/Method`, with or without a slash in front, as the server
    /// describes it. Keep it for further calls: this makes two calls of its own.
    ///
    /// # Errors
    /// UNIMPLEMENTED if the server has no such method; the text names those that it has.
    pub async fn method(&self, path: &str) -> Result<DynamicMethod, Status> {
        let (service, method) = path
            .strip_prefix('/')
            .unwrap_or(path)
            .split_once('/')
            .ok_or_else(|| {
                let text = format!("{path:?} is no method: write package.Service/Method");
                Status::invalid_argument(text).with_not_run()
            })?;
        let descriptor = self.service(service).await?;
        let found = descriptor.methods().find(|known| known.name() == method);
        let found = found.ok_or_else(|| {
            let names: Vec<_> = descriptor.methods().map(|m| m.name().to_owned()).collect();
            let names = names.join(", ");
            let text = format!("{service} has no method {method}; it has {names}");
            Status::unimplemented(text).with_not_run()
        })?;
        DynamicMethod::new(found)
    }

    /// Makes a call. It begins whether or not the future is polled; dropping the future cancels it.
    pub fn call(&self, method: &DynamicMethod, request: &DynamicMessage) -> DynamicCall {
        let request = request.encode_to_vec();
        DynamicCall {
            call: (self.channel).call_protobuf(method.path(), &request, &self.options),
            output: method.descriptor().output(),
        }
    }
}

/// An outstanding call. Dropping it cancels the call.
#[must_use = "dropping the future cancels the call"]
pub struct DynamicCall {
    call: ProtobufCall,
    output: MessageDescriptor,
}

impl DynamicCall {
    /// Waits for the call, in a thread that runs no executor.
    pub fn wait(self) -> Result<DynamicResponse, Status> {
        starling::block_on(self)
    }
}

impl Future for DynamicCall {
    type Output = Result<DynamicResponse, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { call, output } = &mut *self;
        Pin::new(call).poll(cx).map(|response| {
            let response = response?;
            let message = DynamicMessage::decode(output.clone(), response.body());
            let message = message.map_err(|error| {
                Status::internal(format!("the server's response is malformed: {error}"))
            })?;
            Ok(DynamicResponse { message, response })
        })
    }
}

impl fmt::Debug for DynamicCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DynamicCall")
            .field(&self.output.full_name())
            .finish()
    }
}

/// The response to a dynamic call.
#[derive(Clone)]
pub struct DynamicResponse {
    message: DynamicMessage,
    response: ProtobufResponse,
}

impl DynamicResponse {
    /// The message.
    pub fn message(&self) -> &DynamicMessage {
        &self.message
    }

    /// The message alone.
    pub fn into_message(self) -> DynamicMessage {
        self.message
    }

    /// The metadata that the server sent with the message.
    pub fn metadata(&self) -> MetadataView<'_> {
        self.response.metadata()
    }

    /// The message as indented JSON, by protobuf's mapping, with fields that are not set.
    pub fn to_json(&self) -> String {
        json::print(&self.message)
    }
}

impl fmt::Debug for DynamicResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamicResponse")
            .field("message", &format_args!("{}", self.to_json().trim_end()))
            .field("metadata", &self.metadata())
            .finish()
    }
}
