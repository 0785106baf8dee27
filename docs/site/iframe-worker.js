/* Browsers start no worker from a file, so search would need a server. From a file, this stand-in
   runs the script of the worker in a hidden frame of the page. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.title = "search"
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.post = (data) => inside.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = url
      script.onload = () => {
        this.waiting.forEach(this.post)
        this.waiting = null
      }
      script.onerror = () => this.dispatchEvent(new Event("error"))
      inside.document.head.append(script)
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.post(data)
    }
    terminate() {}
  }
}
