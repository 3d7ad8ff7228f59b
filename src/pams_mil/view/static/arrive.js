// A link from a page on disk has arrived: on to the slide that it names, from a page of our own, so that the cookie is sent.
location.replace(`/${location.hash}`);
